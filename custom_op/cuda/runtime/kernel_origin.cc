#include "cuda/runtime/kernel_origin.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <mutex>
#include <optional>
#include <set>
#include <stdexcept>
#include <string_view>
#include <tuple>

#include "conv/error.h"
#include "cuda/runtime/kernel_sources.h"
#include "cuda/runtime/shared_library.h"
#include "plan/catalog.h"
#include "plan/device.h"

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

// In the folder of the file that this code was loaded from.
std::shared_ptr<const Pack> read_ready_made() {
  const std::string own = SharedLibrary::path_of(reinterpret_cast<const void*>(&ready_made_kernels));
  const std::string path = own.substr(0, own.rfind('/') + 1) + kReadyMadeName;
  struct stat facts{};
  if (stat(path.c_str(), &facts) != 0) return nullptr;
  // A wheel has kernels for every card: those of other generations than the cards here need no memory.
  std::set<int> generations;
  for (int index = 0; index < cuda_device_count(); ++index) {
    try {
      generations.insert(cuda_device(index).compute_capability / 10);
    } catch (const std::runtime_error&) {
      continue;  // one that cannot be read must not spoil the others
    }
  }
  const auto is_wanted = [&](int capability) {
    return generations.empty() || generations.contains(capability / 10);
  };
  try {
    return Pack::read(path, is_wanted);
  } catch (const InvalidArgument&) {
    // Of another version, or damaged: its kernels are compiled like others.
    return nullptr;
  }
}

// The paths and texts of a session's files, by their entries: one that was written anew is another one.
using SessionTexts = std::map<std::string, std::pair<std::string, std::string>>;

std::string session_text(const std::string& entry, const std::string& path) {
  std::ifstream file(path);
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (!file) {
    throw InvalidArgument("the kernel '" + path + "' (" + entry + ") cannot be read: expected a file");
  }
  return text;
}

std::map<std::string, std::shared_ptr<const void>, std::less<>> parsed(const SessionTexts& texts) {
  std::map<std::string, std::shared_ptr<const void>, std::less<>> files;
  for (const SessionFile* file : session_files()) {
    const auto given = texts.find(std::string(file->entry));
    if (given == texts.end()) continue;
    const auto& [path, text] = given->second;
    files.emplace(file->entry, file->read(path.substr(path.rfind('/') + 1), text));
  }
  return files;
}

}  // namespace

std::shared_ptr<const Pack> Pack::read(const std::string& path, const std::function<bool(int)>& is_wanted) {
  const std::string whole = read_pack_file(path);
  std::string_view text = whole;
  const std::optional<std::string_view> first = take_line(text);
  if (!first || !first->starts_with(kPackFormat)) refuse(path, "is no pack");
  if (first->substr(kPackFormat.size()) != kKernelSourcesHash) {
    refuse(path, "is of another version of convswap than this library, " CONVSWAP_VERSION);
  }
  auto pack = std::make_shared<Pack>();
  pack->path_ = path;
  while (!text.empty()) {
    const std::optional<std::string_view> line = take_line(text);
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

const KernelOrigin* kernel_origin(const std::string& pack, bool compiles,
                                  const std::map<std::string, std::string>& files) {
  SessionTexts texts;
  for (const auto& [entry, path] : files) {
    if (!path.empty()) texts[entry] = {path, session_text(entry, path)};
  }
  if (pack.empty() && compiles && texts.empty()) return nullptr;
  // A file that was written anew is another one.
  struct stat facts{};
  if (!pack.empty()) static_cast<void>(stat(pack.c_str(), &facts));
  using Key = std::tuple<std::string, ino_t, time_t, off_t, bool, SessionTexts>;
  const Key key{pack, facts.st_ino, facts.st_mtim.tv_sec, facts.st_size, compiles, texts};
  static std::mutex mutex;
  static auto& origins = *new std::map<Key, std::unique_ptr<const KernelOrigin>>;
  const std::lock_guard<std::mutex> lock(mutex);
  std::unique_ptr<const KernelOrigin>& origin = origins[key];
  if (!origin) {
    auto own = parsed(texts);
    origin = std::make_unique<const KernelOrigin>(
        KernelOrigin{pack.empty() ? nullptr : Pack::read(pack), compiles, std::move(own)});
  }
  return origin.get();
}

const Pack* ready_made_kernels() {
  static const auto& pack = *new std::shared_ptr<const Pack>(read_ready_made());
  return pack.get();
}

}  // namespace convswap
