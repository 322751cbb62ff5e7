#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "conv/problem.h"
#include "plan/device.h"

// The text of a tuning table, which `convswap tune` measures. It has one line for each device, version of
// convswap and problem, with five fields:
//
//   cuda NVIDIA H200 | 0.1.0 | float32 tf32 x=... pads=0x0x0x0 | few_channels | few_channels 0.96, naive 12.3
//
// the device, the version, ConvProblem::text(), the fastest algorithm, and the milliseconds of each measured
// algorithm. The first line is kTuningHeader. Empty lines and lines that begin with # are ignored. The last
// of several lines about a problem counts. Every line is printable ASCII and ends with a line feed.

namespace convswap {

inline constexpr std::string_view kTuningHeader = "# convswap tuning table, format 1";

struct TuningEntry {
  std::string device;
  std::string version;
  std::string problem;
  std::string algorithm;
  // Algorithms and times in the order of the line; `algorithm` is among them.
  std::vector<std::pair<std::string, double>> milliseconds;
};

struct TuningTable {
  std::vector<TuningEntry> entries;  // of the valid lines
  std::string damage;                // one line about the invalid ones; empty without any
};

TuningTable parse_tuning_table(std::string_view text);

// Returns the valid entries of lines without a kTuningHeader; the last line needs no line feed.
std::vector<TuningEntry> parse_tuning_lines(std::string_view lines);

// The device's name in a tuning table: a card's name, or the processor's with the instruction set in use.
std::string tuning_device(const Device& device);

// The path of the user's tuning table: $CONVSWAP_TUNING, else convswap/tuning.txt in the user's cache folder
// ($XDG_CACHE_HOME, else ~/.cache). Empty without a home folder, and then there is no table.
std::string tuning_path();

// The user's tuning table, read again if the file has changed since the last call. A missing file is an empty
// table; a file that cannot be read is a damaged one. Never throws because of the file's content.
TuningTable read_tuning_table();

// The table's entry for the problem on the device, for this version of convswap. Thread-safe.
std::optional<TuningEntry> find_tuned(const ConvProblem& problem, const Device& device);

// The line that `convswap calibrate` wrote for the device and this version: its problem is kCalibration, and
// its "milliseconds" are the factors of with_factors() in cuda/costs/cost_table.h.
inline constexpr std::string_view kCalibration = "calibration of the estimates";
std::optional<TuningEntry> find_calibration(const Device& device);

// Returns one line about damage, once for each state of the file; "" without news.
std::string take_tuning_warning();

// Measurements that a node carries in its attribute `tuned`: lines of a tuning table about its own problems.
// They are hints, since the file may meet another card, another version or other sizes. Lines about other
// cases, and damaged lines, are ignored.
class TuningHints {
 public:
  TuningHints() = default;
  explicit TuningHints(std::string_view lines) : entries_(parse_tuning_lines(lines)) {}

  // The last entry for the problem on the device, for this version of convswap; null if there is none.
  const TuningEntry* find(const ConvProblem& problem, const Device& device) const;

  // The algorithms named for the problem on any device of that kind, each once: candidates on other machines.
  std::vector<std::string> algorithms_on_any_device(const ConvProblem& problem, DeviceKind kind) const;

 private:
  std::vector<TuningEntry> entries_;
};

}  // namespace convswap
