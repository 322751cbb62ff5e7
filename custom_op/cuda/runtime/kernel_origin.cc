#include "cuda/runtime/kernel_origin.h"

#include <sys/stat.h>

#include <fstream>
#include <iterator>
#include <map>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>

#include "conv/error.h"
#include "cuda/runtime/shared_library.h"
#include "plan/catalog.h"
#include "plan/device.h"

namespace convswap {
namespace {

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

const KernelOrigin* kernel_origin(const std::string& pack, bool compiles,
                                  const std::map<std::string, std::string>& files) {
  if (pack.empty() && compiles && files.empty()) return nullptr;
  SessionTexts texts;
  for (const auto& [entry, path] : files) texts[entry] = {path, session_text(entry, path)};
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
