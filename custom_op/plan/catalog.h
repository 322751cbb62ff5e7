#pragma once

#include <string_view>
#include <vector>

#include "plan/algorithm.h"

namespace convswap {

// Every algorithm of this build, in the order of catalog.def, but for those that need a session's file.
const std::vector<const Algorithm*>& catalog();

// The algorithm with this name for this kind of device; null where there is none.
const Algorithm* find_algorithm(std::string_view name, DeviceKind kind);

// The files that sessions may bring along, each for one algorithm.
std::vector<const SessionFile*> session_files();

}  // namespace convswap
