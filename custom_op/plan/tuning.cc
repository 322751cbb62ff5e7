#include "plan/tuning.h"

#include <cpuid.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <fstream>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "cpu/direct.h"
#include "plan/user_cache.h"
#include "plan/warning.h"

namespace convswap {
namespace {

constexpr std::string_view kFieldSeparator = " | ";
constexpr std::string_view kTimeSeparator = ", ";
constexpr size_t kFields = 5;

bool is_printable(char letter) { return letter >= ' ' && letter <= '~'; }

std::vector<std::string_view> split(std::string_view text, std::string_view separator) {
  std::vector<std::string_view> parts;
  for (size_t end = text.find(separator); end != text.npos; end = text.find(separator)) {
    parts.push_back(text.substr(0, end));
    text.remove_prefix(end + separator.size());
  }
  parts.push_back(text);
  return parts;
}

// "few_channels 0.96"
std::optional<std::pair<std::string, double>> parse_time(std::string_view text) {
  const std::vector<std::string_view> words = split(text, " ");
  if (words.size() != 2 || words[0].empty()) return std::nullopt;
  double milliseconds = 0;
  const char* const end = words[1].data() + words[1].size();
  const auto [parsed, error] = std::from_chars(words[1].data(), end, milliseconds);
  if (error != std::errc() || parsed != end) return std::nullopt;
  if (!std::isfinite(milliseconds) || milliseconds <= 0) return std::nullopt;
  return std::pair(std::string(words[0]), milliseconds);
}

// Parses a line into `entry`. Returns what is wrong with the line; "" if it is valid.
std::string parse_line(std::string_view line, TuningEntry& entry) {
  if (!std::all_of(line.begin(), line.end(), is_printable)) return "has bytes that are no printable ASCII";
  const std::vector<std::string_view> fields = split(line, kFieldSeparator);
  if (fields.size() != kFields) {
    return "has " + std::to_string(fields.size()) + " fields, expected " + std::to_string(kFields);
  }
  for (const std::string_view field : fields) {
    if (field.empty()) return "has an empty field";
  }
  entry = {
      std::string(fields[0]), std::string(fields[1]), std::string(fields[2]), std::string(fields[3]), {}};
  bool has_time = false;
  for (const std::string_view part : split(fields[4], kTimeSeparator)) {
    const auto time = parse_time(part);
    if (!time) return "has times that are not a name and milliseconds each";
    has_time = has_time || time->first == entry.algorithm;
    entry.milliseconds.push_back(*time);
  }
  return has_time ? "" : "has no time of the algorithm that it names";
}

// Returns `text` as a field can hold it. The driver chooses a card's name, which may have any characters.
std::string field_text(std::string_view text) {
  std::string field;
  for (const char letter : text) {
    const char printable = is_printable(letter) && letter != '|' ? letter : ' ';
    if (printable != ' ' || (!field.empty() && field.back() != ' ')) field += printable;
  }
  if (!field.empty() && field.back() == ' ') field.pop_back();
  return field;
}

// The processor's brand string, such as "AMD EPYC 7763 64-Core Processor".
std::string processor_name() {
  // 48 bytes in three CPUID leaves, by the manuals of Intel and AMD.
  constexpr unsigned kFirstLeaf = 0x80000002;
  constexpr unsigned kLeaves = 3;
  unsigned registers[4 * kLeaves]{};
  for (unsigned leaf = 0; leaf < kLeaves; ++leaf) {
    unsigned* part = registers + 4 * leaf;
    if (__get_cpuid(kFirstLeaf + leaf, part, part + 1, part + 2, part + 3) == 0) return "x86-64";
  }
  char name[sizeof registers + 1]{};
  std::memcpy(name, registers, sizeof registers);
  return name;
}

// A line has a few hundred bytes. A file beyond tens of thousands of lines is no tuning table.
constexpr off_t kMaxTableBytes = 16 << 20;
// Attempts to read the file while other processes replace it.
constexpr int kMaxAttempts = 8;

// Identifies a state of a file.
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

TuningTable damaged(const std::string& damage) { return {{}, damage}; }

TuningTable read_table(const FileState& state) {
  if (!state.exists) return {};
  if (!state.regular) return damaged("it is not a regular file");
  if (state.bytes > kMaxTableBytes) return damaged("it is larger than a tuning table ever is");
  std::ifstream file(state.path, std::ios::binary);
  std::string text(static_cast<size_t>(state.bytes), '\0');
  file.read(text.data(), state.bytes);
  if (!file) return damaged("it cannot be read: " + std::string(std::strerror(errno)));
  return parse_tuning_table(text);
}

std::string key_of(std::string_view device, std::string_view version, std::string_view problem) {
  return std::string(device) + '\n' + std::string(version) + '\n' + std::string(problem);
}

// The immutable content of the file at one time.
struct TableSnapshot {
  FileState state;
  TuningTable table;
  std::unordered_map<std::string, size_t> entry_of;

  explicit TableSnapshot(const std::string& path) {
    // Writers replace the file. If its state is the same before and after, the content is consistent.
    for (int attempt = 0; attempt < kMaxAttempts; ++attempt) {
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
  static Warning& warning = *new Warning;  // never destroyed: runs may ask while the process ends
  return warning;
}

std::shared_ptr<const TableSnapshot> current_table() {
  static std::mutex mutex;
  static std::shared_ptr<const TableSnapshot> last;
  const std::lock_guard<std::mutex> lock(mutex);
  const std::string path = tuning_path();
  if (last == nullptr || last->state != state_of(path)) {
    last = std::make_shared<const TableSnapshot>(path);
    if (!last->table.damage.empty()) {
      table_warning().set(
          "the tuning table '" + last->state.path + "' is damaged: " + last->table.damage +
          "; damaged lines are ignored, and their problems planned by heuristic: measure again with "
          "`convswap tune`, or delete the file");
    }
  }
  return last;
}

std::optional<TuningEntry> find_entry(std::string_view problem, const Device& device) {
  const std::shared_ptr<const TableSnapshot> snapshot = current_table();
  const auto found = snapshot->entry_of.find(key_of(tuning_device(device), CONVSWAP_VERSION, problem));
  if (found == snapshot->entry_of.end()) return std::nullopt;
  return snapshot->table.entries[found->second];
}

// True if the entry is about the problem with this `text`, for this version of convswap.
bool matches(const TuningEntry& entry, std::string_view text) {
  return entry.version == CONVSWAP_VERSION && entry.problem == text;
}

}  // namespace

TuningTable parse_tuning_table(std::string_view text) {
  TuningTable table;
  // A byte order mark, which some editors put in front.
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
  const std::vector<std::string_view> lines = split(text, "\n");
  if (lines.size() < 2 || lines.front() != kTuningHeader) {
    table.damage = "its first line is not '" + std::string(kTuningHeader) + "'";
    return table;
  }
  int faults = 0;
  for (size_t i = 1; i < lines.size(); ++i) {
    if (lines[i].empty() || lines[i].front() == '#') continue;
    TuningEntry entry;
    // A last line without a line feed was cut off.
    const std::string fault = i + 1 == lines.size() ? "is cut off" : parse_line(lines[i], entry);
    if (fault.empty()) {
      table.entries.push_back(std::move(entry));
    } else if (++faults == 1) {
      table.damage = "line " + std::to_string(i + 1) + " " + fault;
    }
  }
  if (faults > 1) table.damage += "; damaged lines in all: " + std::to_string(faults);
  return table;
}

std::vector<TuningEntry> parse_tuning_lines(std::string_view lines) {
  std::vector<TuningEntry> entries;
  for (const std::string_view line : split(lines, "\n")) {
    TuningEntry entry;
    if (parse_line(line, entry).empty()) entries.push_back(std::move(entry));
  }
  return entries;
}

std::string tuning_device(const Device& device) {
  if (device.kind == DeviceKind::cuda) return field_text("cuda " + device.name);
  // Computed once: CPUID is slow in a virtual machine.
  static const std::string processor =
      field_text("cpu " + processor_name() + " " + std::string(direct_instruction_sets().front()));
  return processor;
}

std::string tuning_path() {
  if (std::string path = environment("CONVSWAP_TUNING"); !path.empty()) return path;
  const std::string cache = user_cache_folder();
  return cache.empty() ? cache : cache + "/tuning.txt";
}

TuningTable read_tuning_table() { return current_table()->table; }

std::optional<TuningEntry> find_tuned(const ConvProblem& problem, const Device& device) {
  return find_entry(problem.text(), device);
}

std::optional<TuningEntry> find_calibration(const Device& device) {
  return device.is_restricted ? std::nullopt : find_entry(kCalibration, device);
}

std::string take_tuning_warning() { return table_warning().take(); }

const TuningEntry* TuningHints::find(const ConvProblem& problem, const Device& device) const {
  if (entries_.empty()) return nullptr;
  const std::string text = problem.text(), name = tuning_device(device);
  const auto found = std::find_if(entries_.rbegin(), entries_.rend(), [&](const TuningEntry& entry) {
    return entry.device == name && matches(entry, text);
  });
  return found == entries_.rend() ? nullptr : &*found;
}

std::vector<std::string> TuningHints::algorithms_on_any_device(const ConvProblem& problem,
                                                               DeviceKind kind) const {
  std::vector<std::string> names;
  if (entries_.empty()) return names;
  const std::string text = problem.text(), prefix = std::string(name_of(kind)) + " ";
  for (const TuningEntry& entry : entries_) {
    if (!entry.device.starts_with(prefix) || !matches(entry, text)) continue;
    if (std::find(names.begin(), names.end(), entry.algorithm) == names.end()) {
      names.push_back(entry.algorithm);
    }
  }
  return names;
}

}  // namespace convswap
