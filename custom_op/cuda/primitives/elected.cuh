#pragma once

namespace convswap {

// Whether this thread is the one of its warp, all of which are here, that does what one is to do: an
// instruction of compute capability 9.0 and newer. The compiler sees that no other lane comes with values of
// its own, for which it would repeat instructions that take what a warp has in common.
__device__ inline bool is_elected() {
  unsigned is;
  asm volatile("{ .reg .pred p; elect.sync _|p, 0xffffffff; selp.u32 %0, 1, 0, p; }" : "=r"(is)::"memory");
  return is != 0;
}

}  // namespace convswap
