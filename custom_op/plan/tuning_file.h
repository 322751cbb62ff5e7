#pragma once

#include <optional>
#include <string>

#include "plan/tuning_table.h"

namespace convswap {

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

}  // namespace convswap
