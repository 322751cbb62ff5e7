#pragma once

namespace convswap::ladder {

// Most filters of a problem that a rung supports.
inline constexpr int kMaxFilters = 65535;

// kMaxFilters zeros in the memory of the device, which must be the current one. Allocated by the first call
// and never freed.
const float* no_bias(int device);

}  // namespace convswap::ladder
