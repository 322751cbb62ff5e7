#pragma once

namespace convswap {

// Returns a sum that was computed again because its parts were not finite. The emulation ends if the sum is
// finite: its data have no number that a part could not hold, so the kernel read what was not there.
__device__ inline float recomputed(float sum) { return sum; }

}  // namespace convswap
