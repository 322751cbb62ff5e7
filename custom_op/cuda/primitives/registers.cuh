#pragma once

namespace convswap {

// The value, such that what is computed from it is computed here and again, and not kept in registers from
// before a loop on: a kernel that needs all its registers elsewhere would store them in local memory.
__device__ inline unsigned computed_here(unsigned value) {
  asm volatile("" : "+r"(value));
  return value;
}

}  // namespace convswap
