#include "plan/tuning_table.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>

#include "cpu/direct.h"
#include "cpu/processor.h"

namespace convswap {
namespace {

constexpr std::string_view kBetweenFields = " | ";
constexpr std::string_view kBetweenTimes = ", ";
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

// What is wrong with the line; empty where it is sound, and `entry` is then what it says.
std::string parse_line(std::string_view line, TuningEntry& entry) {
  if (!std::all_of(line.begin(), line.end(), is_printable)) return "has bytes that are no printable ASCII";
  const std::vector<std::string_view> fields = split(line, kBetweenFields);
  if (fields.size() != kFields) {
    return "has " + std::to_string(fields.size()) + " fields, expected " + std::to_string(kFields);
  }
  for (const std::string_view field : fields) {
    if (field.empty()) return "has an empty field";
  }
  entry = {
      std::string(fields[0]), std::string(fields[1]), std::string(fields[2]), std::string(fields[3]), {}};
  bool has_own_time = false;
  for (const std::string_view part : split(fields[4], kBetweenTimes)) {
    const auto time = parse_time(part);
    if (!time) return "has times that are not a name and milliseconds each";
    has_own_time = has_own_time || time->first == entry.algorithm;
    entry.milliseconds.push_back(*time);
  }
  return has_own_time ? "" : "has no time of the algorithm that it names";
}

// What a field can hold: a card's name is the driver's to choose.
std::string field_text(std::string_view text) {
  std::string field;
  for (const char letter : text) {
    const char kept = is_printable(letter) && letter != '|' ? letter : ' ';
    if (kept != ' ' || (!field.empty() && field.back() != ' ')) field += kept;
  }
  if (!field.empty() && field.back() == ' ') field.pop_back();
  return field;
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
    // What follows the last line feed was meant to be longer.
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
  // Once, because a virtual machine takes its time over CPUID.
  static const std::string processor =
      field_text("cpu " + processor_name() + " " + std::string(direct_instruction_sets().front()));
  return processor;
}

}  // namespace convswap
