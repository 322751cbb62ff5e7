#include "cuda/runtime/pack.h"

#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <optional>
#include <stdexcept>
#include <string_view>

#include "conv/error.h"
#include "cuda/runtime/kernel_sources.h"

namespace convswap {
namespace {

constexpr std::string_view kPackFormat = "convswap pack 1 ";

[[noreturn]] void refuse(const std::string& path, const std::string& why) {
  throw InvalidArgument("the pack '" + path + "' " + why + ": make it with convswap warm -o FILE.pack");
}

// A kernel's line: "BYTES CAPABILITY NAME", before its text of so many bytes.
struct Head {
  size_t bytes = 0;
  int capability = 0;
  std::string kernel;
};

std::optional<Head> parse_head(std::string_view line) {
  Head head;
  const char* const end = line.data() + line.size();
  const auto bytes = std::from_chars(line.data(), end, head.bytes);
  if (bytes.ec != std::errc() || bytes.ptr == end || *bytes.ptr != ' ') return std::nullopt;
  const auto capability = std::from_chars(bytes.ptr + 1, end, head.capability);
  if (capability.ec != std::errc() || capability.ptr == end || *capability.ptr != ' ') return std::nullopt;
  head.kernel.assign(capability.ptr + 1, end);
  return head;
}

std::string key_in_pack(const std::string& kernel, int capability) {
  return std::string(kKernelSourcesHash) + ' ' + std::to_string(capability) + ' ' + kernel;
}

std::string read_pack_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) refuse(path, std::string("cannot be read (") + std::strerror(errno) + ")");
  try {
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  } catch (const std::ios_base::failure&) {  // of a folder, for one
    refuse(path, "cannot be read");
  }
}

// PTX; else it is an ELF file.
bool is_portable(const KernelCode& code) {
  return !code.binary.starts_with(
      "\x7f"
      "ELF");
}

}  // namespace

std::shared_ptr<const Pack> Pack::read(const std::string& path, const std::function<bool(int)>& is_wanted) {
  const std::string whole = read_pack_file(path);
  std::string_view text = whole;
  const auto take_line = [&]() -> std::optional<std::string_view> {
    const size_t end = text.find('\n');
    if (end == std::string_view::npos) return std::nullopt;
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(end + 1);
    return line;
  };
  const std::optional<std::string_view> first = take_line();
  if (!first || !first->starts_with(kPackFormat)) refuse(path, "is no pack");
  if (first->substr(kPackFormat.size()) != kKernelSourcesHash) {
    refuse(path, "is of another version of convswap than this library, " CONVSWAP_VERSION);
  }
  auto pack = std::make_shared<Pack>();
  pack->path_ = path;
  while (!text.empty()) {
    const std::optional<std::string_view> line = take_line();
    const std::optional<Head> head = line ? parse_head(*line) : std::nullopt;
    if (!head || head->bytes > text.size()) refuse(path, "is damaged");
    std::optional<KernelCode> code =
        parse_kernel_code(key_in_pack(head->kernel, head->capability), text.substr(0, head->bytes));
    if (!code) refuse(path, "is damaged");
    text.remove_prefix(head->bytes);
    const bool is_for_all = is_portable(*code);
    if (!is_for_all && is_wanted && !is_wanted(head->capability)) continue;
    Kernels& kernels = is_for_all ? pack->portable_ : pack->kernels_;
    kernels[{head->kernel, head->capability}] = *std::move(code);
  }
  return pack;
}

std::vector<std::pair<std::string, int>> Pack::contents() const {
  std::vector<std::pair<std::string, int>> all;
  for (const auto& [key, code] : kernels_) all.push_back(key);
  return all;
}

const KernelCode* Pack::find(const std::string& kernel, int compute_capability) const {
  const KernelCode* found = nullptr;
  // Those of older cards come first, and the newest of them wins.
  const auto look = [&](const Kernels& kernels, auto fits) {
    const auto end = kernels.upper_bound({kernel, compute_capability});
    for (auto at = kernels.lower_bound({kernel, 0}); at != end; ++at) {
      if (fits(at->first.second)) found = &at->second;
    }
  };
  look(portable_, [](int) { return true; });
  look(kernels_, [&](int capability) {
    // Code for Hopper uses what only Hopper has.
    const bool is_of_generation = capability / 10 == compute_capability / 10 && capability != 90;
    return capability == compute_capability || is_of_generation;
  });
  return found;
}

void write_pack(const std::string& path, const std::vector<std::pair<KernelRequest, KernelCode>>& kernels) {
  const std::string beside = path + "." + std::to_string(getpid()) + ".part";
  std::ofstream file(beside, std::ios::binary | std::ios::trunc);
  file << kPackFormat << kKernelSourcesHash << '\n';
  for (const auto& [request, code] : kernels) {
    const std::string text = text_of(key_in_pack(request.kernel, request.compute_capability), code);
    file << text.size() << ' ' << request.compute_capability << ' ' << request.kernel << '\n' << text;
  }
  file.close();
  if (!file || std::rename(beside.c_str(), path.c_str()) != 0) {
    const std::string why = std::strerror(errno);
    unlink(beside.c_str());
    throw std::runtime_error("'" + path + "' cannot be written: " + why);
  }
}

}  // namespace convswap
