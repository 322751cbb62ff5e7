#pragma once

#include "cuda/primitives/tensor_core.cuh"
#include "cuda_emulation.h"

namespace convswap {

struct SharedMatrix {
  const unsigned char* start;

  template <int kTiles>
  static SharedMatrix at(const void* shared) {
    if (reinterpret_cast<uintptr_t>(shared) % 16 != 0) emulation::fail("a matrix that is not aligned");
    return {static_cast<const unsigned char*>(shared)};
  }
  SharedMatrix advanced(unsigned units) const { return {start + units * 16}; }
};

// The 16 bytes that the lane names: one row, one half of the depth.
struct WarpRows {
  unsigned words[4];

  void load(uintptr_t shared_address) {
    if (shared_address % 16 != 0) emulation::fail("rows that are not aligned");
    std::memcpy(words, reinterpret_cast<const void*>(shared_address), sizeof(words));
  }
};

template <int kCount, int kTiles>
void begin_warpgroup_products(float (&)[kCount][kTiles][4]) {
  emulation::meet_warpgroup();
}
template <int kCount, int kTiles>
void finish_warpgroup_products(float (&)[kCount][kTiles][4]) {
  emulation::meet_warpgroup();
}

template <typename Number, int kTiles>
void add_warpgroup_product(float (&sums)[kTiles][4], const WarpRows& a, SharedMatrix b) {
  // The four warps are given the same matrix.
  emulation::meet_warpgroup_with(b.start);
  emulation::Warp& warp = emulation::warp();
  const int lane = emulation::lane();
  std::copy_n(a.words, 4, warp.a[lane]);
  emulation::meet_warp();
  for (int j = 0; j < 4; ++j) {
    const int row = lane / 4 + j / 2 * 8;
    for (int tile = 0; tile < kTiles; ++tile) {
      const int column = lane % 4 * 2 + j % 2;
      double sum = sums[tile][j];
      for (int depth = 0; depth < 16; depth += 2) {
        const unsigned x = warp.a[row + depth / 8 * 16][depth % 8 / 2];
        unsigned y;
        std::memcpy(&y, b.start + (depth / 8 * kTiles + tile) * 128 + column * 16 + depth % 8 * 2, 4);
        for (int half = 0; half < 2; ++half) sum += number_at<Number>(x, half) * number_at<Number>(y, half);
      }
      sums[tile][j] = static_cast<float>(sum);
    }
  }
  emulation::meet_warp();
}

}  // namespace convswap
