#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "conv/problem.h"
#include "plan/device.h"

// The text of a tuning table: what `convswap tune` measured, one line for each device, version of convswap
// and problem, of five fields:
//
//   cuda NVIDIA H200 | 0.1.0 | float32 tf32 x=... pads=0x0x0x0 | few_channels | few_channels 0.96, naive 12.3
//
// the device, the version, ConvProblem::text(), the fastest algorithm, and the milliseconds of all that were
// measured. The first line is kTuningHeader; later lines that are empty or begin with # are left out. Of two
// lines about the same problem the last counts. Every line is printable ASCII and ends with a line feed.

namespace convswap {

inline constexpr std::string_view kTuningHeader = "# convswap tuning table, format 1";

struct TuningEntry {
  std::string device;
  std::string version;
  std::string problem;
  std::string algorithm;
  // By name, in the order of the line; `algorithm` is among them.
  std::vector<std::pair<std::string, double>> milliseconds;
};

struct TuningTable {
  std::vector<TuningEntry> entries;  // of the lines that are sound
  std::string damage;                // in one line, what is wrong with the others; empty where nothing is
};

TuningTable parse_tuning_table(std::string_view text);

// The sound ones of lines that have no kTuningHeader before them; the last need not end with a line feed.
std::vector<TuningEntry> parse_tuning_lines(std::string_view lines);

// The device's name in a tuning table: a card's name, or the processor's with the instruction set in use.
std::string tuning_device(const Device& device);

// The path of the user's tuning table: $CONVSWAP_TUNING, else convswap/tuning.txt in the user's cache folder
// ($XDG_CACHE_HOME, else ~/.cache). Empty where there is no home folder: then there is no table.
std::string tuning_path();

// What the user's tuning table holds, read anew where the file has changed since the last call. A file that
// is not there is an empty table; one that cannot be read is a damaged one. Never throws for what is in the
// file.
TuningTable read_tuning_table();

// What the table says of the problem on the device, for this version of convswap. Safe from any thread.
std::optional<TuningEntry> find_tuned(const ConvProblem& problem, const Device& device);

// One line about damage that a reading met, once for each state of the file; empty where there is nothing new
// to say.
std::string take_tuning_warning();

// What a node of a model tells of its own problems: lines of a tuning table, in its attribute `tuned`. They
// are preferences and no commands, since the file may be loaded beside another card, by another version, and
// run with other sizes: what is not about the case in hand, or is damaged, says nothing.
class Preferences {
 public:
  Preferences() = default;
  explicit Preferences(std::string_view lines) : entries_(parse_tuning_lines(lines)) {}

  // What they say of the problem on the device, for this version of convswap; null where that is nothing. Of
  // two lines about the same the last counts.
  const TuningEntry* find(const ConvProblem& problem, const Device& device) const;

  // The algorithms that they name for the problem on any device of that kind, each once: what a machine that
  // is not here may take.
  std::vector<std::string> anywhere(const ConvProblem& problem, DeviceKind kind) const;

 private:
  std::vector<TuningEntry> entries_;
};

}  // namespace convswap
