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

[[noreturn]] void throw_pack_error(const std::string& path, const std::string& why) {
  throw InvalidArgument("the pack '" + path + "' " + why + ": make it with convswap warm -o FILE.pack");
}

// The line before each kernel's text in a pack: "BYTES CAPABILITY NAME".
struct PackEntry {
  size_t bytes = 0;
  int capability = 0;
  std::string kernel;
};

std::optional<PackEntry> parse_entry(std::string_view line) {
  PackEntry entry;
  const char* const end = line.data() + line.size();
  const auto bytes = std::from_chars(line.data(), end, entry.bytes);
  if (bytes.ec != std::errc() || bytes.ptr == end || *bytes.ptr != ' ') return std::nullopt;
  const auto capability = std::from_chars(bytes.ptr + 1, end, entry.capability);
  if (capability.ec != std::errc() || capability.ptr == end || *capability.ptr != ' ') return std::nullopt;
  entry.kernel.assign(capability.ptr + 1, end);
  return entry;
}

std::string key_in_pack(const std::string& kernel, int capability) {
  return std::string(kKernelSourcesHash) + ' ' + std::to_string(capability) + ' ' + kernel;
}

std::string read_pack_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw_pack_error(path, std::string("cannot be read (") + std::strerror(errno) + ")");
  try {
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  } catch (const std::ios_base::failure&) {  // for example a folder
    throw_pack_error(path, "cannot be read");
  }
}

// True for PTX; a cubin is an ELF file.
bool is_ptx_code(const KernelCode& code) {
  return !code.binary.starts_with(
      "\x7f"
      "ELF");
}

// Reads the pack in the folder of this library's file.
std::shared_ptr<const Pack> read_ready_made() {
  const std::string library = SharedLibrary::path_of(reinterpret_cast<const void*>(&ready_made_kernels));
  const std::string path = library.substr(0, library.rfind('/') + 1) + kReadyMadeName;
  struct stat facts{};
  if (stat(path.c_str(), &facts) != 0) return nullptr;
  // A wheel has kernels for every card. Those of other generations than the installed cards are skipped to
  // save memory.
  std::set<int> generations;
  for (int index = 0; index < cuda_device_count(); ++index) {
    try {
      generations.insert(cuda_device(index).compute_capability / 10);
    } catch (const std::runtime_error&) {
      continue;  // an unreadable card does not affect the others
    }
  }
  const auto is_wanted = [&](int capability) {
    return generations.empty() || generations.contains(capability / 10);
  };
  try {
    return Pack::read(path, is_wanted);
  } catch (const InvalidArgument&) {
    // Another version's pack or a damaged one is ignored; kernels are compiled instead.
    return nullptr;
  }
}

// Paths and texts of a session's files, by session entry. The texts are part of the key, so a rewritten file
// is read again.
using SessionTexts = std::map<std::string, std::pair<std::string, std::string>>;

std::string session_text(const std::string& entry, const std::string& path) {
  std::ifstream file(path);
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (!file) {
    throw InvalidArgument("the kernel '" + path + "' (" + entry + ") cannot be read: expected a file");
  }
  return text;
}

std::map<std::string, std::shared_ptr<const void>, std::less<>> parse_files(const SessionTexts& texts) {
  std::map<std::string, std::shared_ptr<const void>, std::less<>> files;
  for (const SessionFile* file : session_files()) {
    const auto found = texts.find(std::string(file->entry));
    if (found == texts.end()) continue;
    const auto& [path, text] = found->second;
    files.emplace(file->entry, file->read(path.substr(path.rfind('/') + 1), text));
  }
  return files;
}

}  // namespace

std::shared_ptr<const Pack> Pack::read(const std::string& path, const std::function<bool(int)>& is_wanted) {
  const std::string contents = read_pack_file(path);
  std::string_view text = contents;
  const std::optional<std::string_view> first = take_line(text);
  if (!first || !first->starts_with(kPackFormat)) throw_pack_error(path, "is not a pack");
  if (first->substr(kPackFormat.size()) != kKernelSourcesHash) {
    throw_pack_error(path, "is of another version of convswap than this library, " CONVSWAP_VERSION);
  }
  auto pack = std::make_shared<Pack>();
  pack->path_ = path;
  while (!text.empty()) {
    const std::optional<std::string_view> line = take_line(text);
    const std::optional<PackEntry> entry = line ? parse_entry(*line) : std::nullopt;
    if (!entry || entry->bytes > text.size()) throw_pack_error(path, "is damaged");
    std::optional<KernelCode> code =
        parse_kernel_code(key_in_pack(entry->kernel, entry->capability), text.substr(0, entry->bytes));
    if (!code) throw_pack_error(path, "is damaged");
    text.remove_prefix(entry->bytes);
    const bool is_ptx = is_ptx_code(*code);
    if (!is_ptx && is_wanted && !is_wanted(entry->capability)) continue;
    Kernels& kernels = is_ptx ? pack->ptx_kernels_ : pack->kernels_;
    kernels[{entry->kernel, entry->capability}] = *std::move(code);
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
  // Ascending order: the newest of the matching architectures wins.
  const auto search = [&](const Kernels& kernels, auto fits) {
    const auto end = kernels.upper_bound({kernel, compute_capability});
    for (auto at = kernels.lower_bound({kernel, 0}); at != end; ++at) {
      if (fits(at->first.second)) found = &at->second;
    }
  };
  search(ptx_kernels_, [](int) { return true; });
  search(kernels_, [&](int capability) {
    // Code for compute capability 9.0 is sm_90a, which runs on no other.
    const bool same_generation = capability / 10 == compute_capability / 10 && capability != 90;
    return capability == compute_capability || same_generation;
  });
  return found;
}

void write_pack(const std::string& path, const std::vector<std::pair<KernelRequest, KernelCode>>& kernels) {
  const std::string temporary_path = path + "." + std::to_string(getpid()) + ".part";
  std::ofstream file(temporary_path, std::ios::binary | std::ios::trunc);
  file << kPackFormat << kKernelSourcesHash << '\n';
  for (const auto& [request, code] : kernels) {
    const std::string text = text_of(key_in_pack(request.kernel, request.compute_capability), code);
    file << text.size() << ' ' << request.compute_capability << ' ' << request.kernel << '\n' << text;
  }
  file.close();
  if (!file || std::rename(temporary_path.c_str(), path.c_str()) != 0) {
    const std::string why = std::strerror(errno);
    unlink(temporary_path.c_str());
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
  // Inode, time and size are part of the key, so a rewritten pack is read again.
  struct stat facts{};
  if (!pack.empty()) static_cast<void>(stat(pack.c_str(), &facts));
  using Key = std::tuple<std::string, ino_t, time_t, off_t, bool, SessionTexts>;
  const Key key{pack, facts.st_ino, facts.st_mtim.tv_sec, facts.st_size, compiles, texts};
  static std::mutex mutex;
  static auto& origins = *new std::map<Key, std::unique_ptr<const KernelOrigin>>;
  const std::lock_guard<std::mutex> lock(mutex);
  std::unique_ptr<const KernelOrigin>& origin = origins[key];
  if (!origin) {
    auto files_by_entry = parse_files(texts);
    origin = std::make_unique<const KernelOrigin>(
        KernelOrigin{pack.empty() ? nullptr : Pack::read(pack), compiles, std::move(files_by_entry)});
  }
  return origin.get();
}

const Pack* ready_made_kernels() {
  static const auto& pack = *new std::shared_ptr<const Pack>(read_ready_made());
  return pack.get();
}

}  // namespace convswap
