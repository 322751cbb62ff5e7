#pragma once

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

}  // namespace convswap
