#pragma once

namespace convswap {

// Neighbouring elements of one load or store, of 16 bytes by default.
template <typename T, int kElements = 16 / int(sizeof(T))>
struct alignas(kElements * sizeof(T)) Chunk {
  static constexpr int kSize = kElements;
  T values[kSize];
};

// True if `pointer` is aligned for a chunk of 16 bytes.
template <typename T>
__device__ inline bool is_aligned(const T* pointer) {
  return reinterpret_cast<unsigned long long>(pointer) % 16 == 0;
}

}  // namespace convswap
