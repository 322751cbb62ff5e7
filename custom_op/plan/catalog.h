#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "plan/algorithm.h"

namespace convswap {

// Every algorithm of this build, in the order of catalog.def, but for the user's own.
const std::vector<const Algorithm*>& catalog();

// The algorithm with this name for this kind of device; null where there is none.
const Algorithm* find_algorithm(std::string_view name, DeviceKind kind);

// The names of the algorithms for a kind of device, in the catalog's order: the ladder's rungs, or all
// others.
std::vector<std::string> algorithm_names(DeviceKind kind, bool rungs);

}  // namespace convswap
