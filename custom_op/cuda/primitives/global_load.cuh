#pragma once

namespace convswap {

// Loads from global memory where a condition holds, as one predicated instruction each; where it does not,
// `to` stays what it is. `address` is aligned to what is loaded. They are not read-only loads (.nc): those
// are for what no kernel writes while this one is there, and a kernel that starts early is there while the
// one before it writes.
__device__ inline void load_global_if(bool condition, unsigned long long address, unsigned short& to) {
  asm volatile("{ .reg .pred p; setp.ne.u32 p, %1, 0; @p ld.global.u16 %0, [%2]; }"
               : "+h"(to)
               : "r"(static_cast<unsigned>(condition)), "l"(address));
}
__device__ inline void load_global_if(bool condition, unsigned long long address, unsigned& to) {
  asm volatile("{ .reg .pred p; setp.ne.u32 p, %1, 0; @p ld.global.u32 %0, [%2]; }"
               : "+r"(to)
               : "r"(static_cast<unsigned>(condition)), "l"(address));
}
// Of 16 bits, into a word whose upper half they clear.
__device__ inline void load_global_16_if(bool condition, unsigned long long address, unsigned& to) {
  asm volatile("{ .reg .pred p; setp.ne.u32 p, %1, 0; @p ld.global.u16 %0, [%2]; }"
               : "+r"(to)
               : "r"(static_cast<unsigned>(condition)), "l"(address));
}
__device__ inline void load_global_if(bool condition, unsigned long long address, uint2& to) {
  asm volatile("{ .reg .pred p; setp.ne.u32 p, %2, 0; @p ld.global.v2.u32 {%0, %1}, [%3]; }"
               : "+r"(to.x), "+r"(to.y)
               : "r"(static_cast<unsigned>(condition)), "l"(address));
}
__device__ inline void load_global_if(bool condition, unsigned long long address, uint4& to) {
  asm volatile("{ .reg .pred p; setp.ne.u32 p, %4, 0; @p ld.global.v4.u32 {%0, %1, %2, %3}, [%5]; }"
               : "+r"(to.x), "+r"(to.y), "+r"(to.z), "+r"(to.w)
               : "r"(static_cast<unsigned>(condition)), "l"(address));
}

}  // namespace convswap
