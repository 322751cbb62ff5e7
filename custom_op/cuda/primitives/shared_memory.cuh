#pragma once

namespace convswap {

using SharedAddress = unsigned;
__device__ inline SharedAddress shared_address(const void* shared) {
  return static_cast<unsigned>(__cvta_generic_to_shared(shared));
}

// Vector stores to shared memory, one instruction each: the compiler sometimes splits a vector store into
// several, which then conflict on banks. `target` is a multiple of the stored size.
__device__ inline void store_shared(unsigned* target, unsigned a, unsigned b) {
  asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(shared_address(target)), "r"(a), "r"(b) : "memory");
}
__device__ inline void store_shared(unsigned* target, unsigned a, unsigned b, unsigned c, unsigned d) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(shared_address(target)), "r"(a), "r"(b),
               "r"(c), "r"(d)
               : "memory");
}
__device__ inline void store_shared(float* target, float a, float b, float c, float d) {
  store_shared(reinterpret_cast<unsigned*>(target), __float_as_uint(a), __float_as_uint(b),
               __float_as_uint(c), __float_as_uint(d));
}

// Store to a shared-memory address that was computed once; the instruction adds constant offsets itself.
__device__ inline void store_shared_at(SharedAddress target, unsigned short word) {
  asm volatile("st.shared.u16 [%0], %1;" ::"r"(target), "h"(word) : "memory");
}
__device__ inline void store_shared_at(SharedAddress target, unsigned word) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(target), "r"(word) : "memory");
}
__device__ inline void store_shared_at(SharedAddress target, uint2 words) {
  asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(target), "r"(words.x), "r"(words.y) : "memory");
}

// Load from such an address.
__device__ inline float load_shared_at(SharedAddress from) {
  float value;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(from) : "memory");
  return value;
}

// Predicated store_shared_at, one instruction.
__device__ inline void store_shared_at_if(bool condition, SharedAddress target, unsigned word) {
  asm volatile("{ .reg .pred p; setp.ne.u32 p, %0, 0; @p st.shared.u32 [%1], %2; }" ::"r"(
                   static_cast<unsigned>(condition)),
               "r"(target), "r"(word)
               : "memory");
}
__device__ inline void store_shared_at_if(bool condition, SharedAddress target, uint2 words) {
  asm volatile("{ .reg .pred p; setp.ne.u32 p, %0, 0; @p st.shared.v2.u32 [%1], {%2, %3}; }" ::"r"(
                   static_cast<unsigned>(condition)),
               "r"(target), "r"(words.x), "r"(words.y)
               : "memory");
}
__device__ inline void store_shared_at_if(bool condition, SharedAddress target, uint4 words) {
  asm volatile("{ .reg .pred p; setp.ne.u32 p, %0, 0; @p st.shared.v4.u32 [%1], {%2, %3, %4, %5}; }" ::"r"(
                   static_cast<unsigned>(condition)),
               "r"(target), "r"(words.x), "r"(words.y), "r"(words.z), "r"(words.w)
               : "memory");
}

}  // namespace convswap
