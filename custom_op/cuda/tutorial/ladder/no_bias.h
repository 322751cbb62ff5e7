#pragma once

namespace convswap::ladder {

// The most filters that a rung takes.
inline constexpr int kMostFilters = 65535;

// A zero for each of so many filters, in the memory of the device, which is the current one. Made the first
// time, and kept.
const float* no_bias(int device);

}  // namespace convswap::ladder
