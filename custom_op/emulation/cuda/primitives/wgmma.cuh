#pragma once

#include <array>
#include <numeric>

#include "cuda/primitives/mma.cuh"
#include "cuda_emulation.h"

namespace convswap {

// The address and the distance of the halves, in units of 16 bytes.
struct SmemDescriptor {
  const unsigned char* start;
  unsigned leading;

  static SmemDescriptor at(const void* shared, unsigned leading) {
    if (reinterpret_cast<uintptr_t>(shared) % 16 != 0) emulation::fail("a matrix that is not aligned");
    return {static_cast<const unsigned char*>(shared), leading};
  }
  SmemDescriptor advanced(unsigned units) const {
    if (leading + (units >> 16) >= 1u << 14) emulation::fail("halves of a matrix that lie too far apart");
    return {start + (units & 0xffffu) * 16, leading + (units >> 16)};
  }
  SmemDescriptor warp_uniform() const { return *this; }

  // Two neighbours along the depth, of one row.
  unsigned pair(int row, int depth) const {
    unsigned both;
    std::memcpy(&both, start + depth / 8 * leading * 16 + row * 16 + depth % 8 * 2, 4);
    return both;
  }
};

// Whether a thread has begun products that it has not ended.
inline std::array<bool, 1024> products_are_open;

inline void wgmma_fence() {
  emulation::meet_warpgroup();
  products_are_open[emulation::current] = true;
}
template <int kTiles>
void wgmma_fence(float (&)[kTiles][4]) {
  wgmma_fence();
}
inline void wgmma_commit_group() { products_are_open[emulation::current] = false; }
template <int kTiles>
void wgmma_wait_all(float (&)[kTiles][4]) {
  if (products_are_open[emulation::current]) emulation::fail("products that are waited for before they end");
  emulation::meet_warpgroup();
}
template <int kCalls>
void wgmma_wait() {
  if (products_are_open[emulation::current]) emulation::fail("products that are waited for before they end");
  emulation::meet_warpgroup();
}
template <int kTiles>
void wgmma_commit_and_wait(float (&accumulators)[kTiles][4]) {
  wgmma_commit_group();
  wgmma_wait_all(accumulators);
}

template <int kTiles>
void scale_accumulators(float (&accumulators)[kTiles][4], float factor) {
  wgmma_commit_and_wait(accumulators);
  for (auto& tile : accumulators) {
    for (float& sum : tile) sum *= factor;
  }
  wgmma_fence(accumulators);
}

constexpr int kDepth = 16;  // of a product

// The numbers of a row or a column, whose neighbours along the depth `pair` gives.
template <typename Operand, typename Pair>
void numbers_of(double (&numbers)[kDepth], Pair pair) {
  for (int depth = 0; depth < kDepth; depth += 2) {
    const unsigned both = pair(depth);
    numbers[depth] = number_at<Operand>(both, 0);
    numbers[depth + 1] = number_at<Operand>(both, 1);
  }
}

// sums += a * b, where a(row, depth) gives two neighbours along the depth.
template <typename Operand, int kTiles, typename First>
void add_product(float (&accumulators)[kTiles][4], First a, SmemDescriptor b) {
  if (!products_are_open[emulation::current]) emulation::fail("a product that has not been begun");
  // The four warps are given the same matrix.
  emulation::meet_warpgroup_with(b.start);
  const int lane = emulation::lane();
  const int first_row = emulation::current % 128 / 32 * 16 + lane / 4;
  // Each number is converted once for all that a thread multiplies it with: that is what takes the time.
  double rows[2][kDepth];
  for (int i = 0; i < 2; ++i) {
    numbers_of<Operand>(rows[i], [&](int depth) { return a(first_row + i * 8, depth); });
  }
  for (int tile = 0; tile < kTiles; ++tile) {
    for (int i = 0; i < 2; ++i) {
      double column[kDepth];
      numbers_of<Operand>(column, [&](int depth) { return b.pair(tile * 8 + lane % 4 * 2 + i, depth); });
      for (int j = 0; j < 2; ++j) {
        float& sum = accumulators[tile][j * 2 + i];
        sum = static_cast<float>(std::inner_product(column, column + kDepth, rows[j], double{sum}));
      }
    }
  }
}

struct Tf32 {};

// sums += a * b of TF32, eight deep, where a(row, depth) gives the bits of a number.
template <int kTiles, typename First>
void add_tensor_float32_product(float (&accumulators)[kTiles][4], First a, SmemDescriptor b) {
  if (!products_are_open[emulation::current]) emulation::fail("a product that has not been begun");
  emulation::meet_warpgroup_with(b.start);
  const auto number = [](unsigned bits) { return double{__uint_as_float(bits & ~0x1fffu)}; };
  const int lane = emulation::lane();
  const int first_row = emulation::current % 128 / 32 * 16 + lane / 4;
  for (int tile = 0; tile < kTiles; ++tile) {
    for (int i = 0; i < 4; ++i) {
      const int column = tile * 8 + lane % 4 * 2 + i % 2;
      double sum = accumulators[tile][i];
      for (int depth = 0; depth < 8; ++depth) {
        unsigned weight;
        std::memcpy(&weight, b.start + depth / 4 * b.leading * 16 + column * 16 + depth % 4 * 4, 4);
        sum += number(a(first_row + i / 2 * 8, depth)) * number(weight);
      }
      accumulators[tile][i] = static_cast<float>(sum);
    }
  }
}

template <typename Operand, int kTiles>
void wgmma(float (&accumulators)[kTiles][4], SmemDescriptor a, SmemDescriptor b) {
  emulation::meet_warpgroup_with(a.start);
  if constexpr (std::is_same_v<Operand, Tf32>) {
    add_tensor_float32_product(
        accumulators,
        [&](int row, int depth) {
          unsigned bits;
          std::memcpy(&bits, a.start + depth / 4 * a.leading * 16 + row * 16 + depth % 4 * 4, 4);
          return bits;
        },
        b);
  } else {
    add_product<Operand>(accumulators, [&](int row, int depth) { return a.pair(row, depth); }, b);
  }
}

template <typename Operand, int kTiles>
void wgmma(float (&accumulators)[kTiles][4], const unsigned (&a)[4], SmemDescriptor b) {
  emulation::Warp& warp = emulation::warp();
  std::copy_n(a, 4, warp.a[emulation::lane()]);
  emulation::meet_warp();
  if constexpr (std::is_same_v<Operand, Tf32>) {
    add_tensor_float32_product(
        accumulators,
        [&](int row, int depth) { return warp.a[row % 8 * 4 + depth % 4][row % 16 / 8 + depth / 4 * 2]; }, b);
  } else {
    add_product<Operand>(
        accumulators,
        [&](int row, int depth) { return warp.a[row % 8 * 4 + depth % 8 / 2][row % 16 / 8 + depth / 8 * 2]; },
        b);
  }
  emulation::meet_warp();
}

template <typename Operand, int kTiles>
void wgmma_overwrite(float (&accumulators)[kTiles][4], const unsigned (&a)[4], SmemDescriptor b) {
  for (auto& tile : accumulators) std::fill_n(tile, 4, 0.0f);
  wgmma<Operand>(accumulators, a, b);
}

}  // namespace convswap
