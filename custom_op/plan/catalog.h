#pragma once

#include <string_view>
#include <vector>

#include "plan/algorithm.h"

namespace convswap {

// All algorithms of this build in the order of catalog.def, except those that need a session file.
const std::vector<const Algorithm*>& catalog();

// Finds an algorithm by name and kind of device; null if there is none.
const Algorithm* find_algorithm(std::string_view name, DeviceKind kind);

// The session files of all algorithms.
std::vector<const SessionFile*> session_files();

}  // namespace convswap
