#pragma once

namespace convswap::ladder {

// The most filters that a rung takes.
inline constexpr int kMostFilters = 65535;

// A zero for each of so many filters, in the memory of the current device.
const float* no_bias();

}  // namespace convswap::ladder
