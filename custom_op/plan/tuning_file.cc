#include "plan/tuning_file.h"

#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "plan/user_cache.h"
#include "plan/warning.h"

namespace convswap {
namespace {

// A line has a few hundred bytes; what is larger than tens of thousands of them is another file.
constexpr off_t kMostTableBytes = 16 << 20;
// To read the file while others replace it.
constexpr int kMostAttempts = 8;

// What tells one state of a file from the next.
struct FileState {
  std::string path;
  bool exists = false;
  bool regular = false;
  dev_t device{};
  ino_t inode{};
  off_t bytes{};
  time_t seconds{};
  long nanoseconds{};

  bool operator==(const FileState&) const = default;
};

FileState state_of(const std::string& path) {
  struct stat facts{};
  if (stat(path.c_str(), &facts) != 0) return {path, false};
  return {path,         true,          S_ISREG(facts.st_mode), facts.st_dev,
          facts.st_ino, facts.st_size, facts.st_mtim.tv_sec,   facts.st_mtim.tv_nsec};
}

TuningTable damaged(const std::string& how) { return {{}, how}; }

TuningTable read_table(const FileState& state) {
  if (!state.exists) return {};
  if (!state.regular) return damaged("it is not a regular file");
  if (state.bytes > kMostTableBytes) return damaged("it is larger than a tuning table ever is");
  std::ifstream file(state.path, std::ios::binary);
  std::string text(static_cast<size_t>(state.bytes), '\0');
  file.read(text.data(), state.bytes);
  if (!file) return damaged("it cannot be read: " + std::string(std::strerror(errno)));
  return parse_tuning_table(text);
}

std::string key_of(std::string_view device, std::string_view version, std::string_view problem) {
  return std::string(device) + '\n' + std::string(version) + '\n' + std::string(problem);
}

// One reading of the file, never changed after it is made.
struct Reading {
  FileState state;
  TuningTable table;
  std::unordered_map<std::string, size_t> entry_of;

  explicit Reading(const std::string& path) {
    // Whoever writes replaces the file: what is the same before and after was read whole.
    for (int attempt = 0; attempt < kMostAttempts; ++attempt) {
      state = state_of(path);
      table = read_table(state);
      if (state_of(path) == state) break;
    }
    for (size_t i = 0; i < table.entries.size(); ++i) {
      const TuningEntry& entry = table.entries[i];
      entry_of[key_of(entry.device, entry.version, entry.problem)] = i;
    }
  }
};

Warning& table_warning() {
  static Warning& waiting = *new Warning;  // runs may ask while the process ends
  return waiting;
}

std::shared_ptr<const Reading> current_reading() {
  static std::mutex mutex;
  static std::shared_ptr<const Reading> last;
  const std::lock_guard<std::mutex> lock(mutex);
  const std::string path = tuning_path();
  if (last == nullptr || last->state != state_of(path)) {
    last = std::make_shared<const Reading>(path);
    if (!last->table.damage.empty()) {
      table_warning().set(
          "the tuning table '" + last->state.path + "' is damaged: " + last->table.damage +
          "; what is damaged is ignored, and planned by rule: measure again with `convswap tune`, or "
          "delete the file");
    }
  }
  return last;
}

}  // namespace

std::string tuning_path() {
  if (std::string given = environment("CONVSWAP_TUNING"); !given.empty()) return given;
  const std::string cache = user_cache_folder();
  return cache.empty() ? cache : cache + "/tuning.txt";
}

TuningTable read_tuning_table() { return current_reading()->table; }

std::optional<TuningEntry> find_tuned(const ConvProblem& problem, const Device& device) {
  const std::shared_ptr<const Reading> reading = current_reading();
  const auto found = reading->entry_of.find(key_of(tuning_device(device), CONVSWAP_VERSION, problem.text()));
  if (found == reading->entry_of.end()) return std::nullopt;
  return reading->table.entries[found->second];
}

std::string take_tuning_warning() { return table_warning().take(); }

}  // namespace convswap
