#pragma once

#include <array>
#include <numeric>

#include "conv/quantization.h"
#include "cuda/primitives/mma.cuh"
#include "cuda_emulation.h"

namespace convswap {

// Start address, and leading offset in units of 16 bytes.
struct SmemDescriptor {
  const unsigned char* start;
  unsigned leading;

  static SmemDescriptor at(const void* shared, unsigned leading) {
    if (reinterpret_cast<uintptr_t>(shared) % 16 != 0) emulation::fail("a misaligned smem descriptor");
    return {static_cast<const unsigned char*>(shared), leading};
  }
  SmemDescriptor advanced(unsigned units) const {
    if (leading + (units >> 16) >= 1u << 14)
      emulation::fail("an smem descriptor whose leading offset is too large");
    return {start + (units & 0xffffu) * 16, leading + (units >> 16)};
  }
  SmemDescriptor warp_uniform() const { return *this; }

  // Two neighbours along k in one row; for TF32 the number `depth` / 2.
  [[gnu::always_inline]] unsigned pair(int row, int depth) const {
    unsigned word;
    std::memcpy(&word, start + depth / 8 * leading * 16 + row * 16 + depth % 8 * 2, 4);
    return word;
  }
};

// Rows of 128 bytes with the swizzle of custom_op/cuda/primitives/wgmma.cuh.
struct SwizzledDescriptor {
  const unsigned char* start;

  static SwizzledDescriptor at(const void* shared) {
    if (reinterpret_cast<uintptr_t>(shared) % 128 != 0) emulation::fail("a misaligned swizzled descriptor");
    return {static_cast<const unsigned char*>(shared)};
  }
  SwizzledDescriptor advanced(unsigned units) const { return {start + units * 16}; }
  SwizzledDescriptor warp_uniform() const { return *this; }

  [[gnu::always_inline]] unsigned pair(int row, int depth) const {
    const uintptr_t address = reinterpret_cast<uintptr_t>(start) + row * 128 + depth * 2;
    unsigned word;
    std::memcpy(&word, reinterpret_cast<const void*>(address ^ (address >> 7 & 7) << 4), 4);
    return word;
  }
};

// By thread: between wgmma_fence and wgmma_commit_group.
inline std::array<bool, emulation::kMaxFibers> wgmma_group_is_open;

inline void wgmma_fence() {
  emulation::sync_warpgroup();
  wgmma_group_is_open[emulation::current] = true;
}
template <int kAccumulatorTiles>
void wgmma_fence(float (&)[kAccumulatorTiles][4]) {
  wgmma_fence();
}
inline void wgmma_commit_group() { wgmma_group_is_open[emulation::current] = false; }
template <typename Accumulator, int kAccumulatorTiles>
void wgmma_fence_operand(Accumulator (&)[kAccumulatorTiles][4]) {}
template <typename Accumulator, int kAccumulatorTiles>
void wgmma_wait_all(Accumulator (&)[kAccumulatorTiles][4]) {
  if (wgmma_group_is_open[emulation::current]) emulation::fail("a wgmma wait without wgmma_commit_group");
  emulation::sync_warpgroup();
}
template <int kPending>
void wgmma_wait() {
  if (wgmma_group_is_open[emulation::current]) emulation::fail("a wgmma wait without wgmma_commit_group");
  emulation::sync_warpgroup();
}
template <int kAccumulatorTiles>
void wgmma_commit_and_wait(float (&accumulators)[kAccumulatorTiles][4]) {
  wgmma_commit_group();
  wgmma_wait_all(accumulators);
}

template <int kAccumulatorTiles>
void scale_accumulators(float (&accumulators)[kAccumulatorTiles][4], float factor) {
  wgmma_commit_and_wait(accumulators);
  for (auto& tile : accumulators) {
    for (float& sum : tile) sum *= factor;
  }
  wgmma_fence(accumulators);
}

constexpr int kDepth = 16;  // k of one wgmma

// Converts a row or column, whose neighbours along k `pair` returns.
template <typename Operand, typename Pair>
void convert_pairs(double (&numbers)[kDepth], Pair pair) {
  for (int depth = 0; depth < kDepth; depth += 2) {
    const unsigned word = pair(depth);
    numbers[depth] = number_at<Operand>(word, 0);
    numbers[depth + 1] = number_at<Operand>(word, 1);
  }
}

// accumulators += a * b; a(row, depth) returns two neighbours along k.
template <typename Operand, int kAccumulatorTiles, typename A, typename Descriptor>
EMULATION_HOT void emulate_wgmma(float (&accumulators)[kAccumulatorTiles][4], A a, Descriptor b) {
  if (!wgmma_group_is_open[emulation::current]) emulation::fail("a wgmma without wgmma_fence");
  // All four warps must pass the same descriptor.
  emulation::check_same_descriptor(b.start);
  const int lane = emulation::lane();
  const int first_row = emulation::current % 128 / 32 * 16 + lane / 4;
  // Each row is converted once per thread, since conversions take most of the time.
  double rows[2][kDepth];
  for (int i = 0; i < 2; ++i) {
    convert_pairs<Operand>(rows[i], [&](int depth) { return a(first_row + i * 8, depth); });
  }
  for (int tile = 0; tile < kAccumulatorTiles; ++tile) {
    for (int i = 0; i < 2; ++i) {
      double column[kDepth];
      convert_pairs<Operand>(column, [&](int depth) { return b.pair(tile * 8 + lane % 4 * 2 + i, depth); });
      for (int j = 0; j < 2; ++j) {
        float& sum = accumulators[tile][j * 2 + i];
        sum = static_cast<float>(std::inner_product(column, column + kDepth, rows[j], double{sum}));
      }
    }
  }
}

struct Tf32 {};

// accumulators += a * b for TF32, k = 8; a(row, depth) returns the bits of a number.
template <int kAccumulatorTiles, typename A, typename Descriptor>
EMULATION_HOT void emulate_wgmma_tf32(float (&accumulators)[kAccumulatorTiles][4], A a, Descriptor b) {
  if (!wgmma_group_is_open[emulation::current]) emulation::fail("a wgmma without wgmma_fence");
  emulation::check_same_descriptor(b.start);
  const int lane = emulation::lane();
  const int first_row = emulation::current % 128 / 32 * 16 + lane / 4;
  double rows[2][8];
  for (int i = 0; i < 2; ++i) {
    for (int depth = 0; depth < 8; ++depth) rows[i][depth] = checked_tf32(a(first_row + i * 8, depth));
  }
  for (int tile = 0; tile < kAccumulatorTiles; ++tile) {
    for (int i = 0; i < 2; ++i) {
      double column[8];
      for (int depth = 0; depth < 8; ++depth) {
        column[depth] = std::bit_cast<float>(b.pair(tile * 8 + lane % 4 * 2 + i, 2 * depth) & ~0x1fffu);
      }
      for (int j = 0; j < 2; ++j) {
        float& sum = accumulators[tile][j * 2 + i];
        sum = static_cast<float>(std::inner_product(column, column + 8, rows[j], double{sum}));
      }
    }
  }
}

// accumulators += a * b for codes, k = 32: int8 in a, the Operand in b.
template <typename Operand, int kAccumulatorTiles>
EMULATION_HOT void wgmma(int (&accumulators)[kAccumulatorTiles][4], SwizzledDescriptor a,
                         SwizzledDescriptor b) {
  if (!wgmma_group_is_open[emulation::current]) emulation::fail("a wgmma without wgmma_fence");
  emulation::check_same_descriptor(a.start);
  emulation::check_same_descriptor(b.start);
  constexpr int kCodeDepth = 32;
  // `pair` counts numbers of two bytes along k.
  const auto read = [](auto& codes, const SwizzledDescriptor& matrix, int row) {
    for (int depth = 0; depth < kCodeDepth; depth += 4) {
      const unsigned word = matrix.pair(row, depth / 2);
      std::memcpy(&codes[depth], &word, 4);
    }
  };
  const int lane = emulation::lane();
  const int first_row = emulation::current % 128 / 32 * 16 + lane / 4;
  Int8 rows[2][kCodeDepth];
  for (int i = 0; i < 2; ++i) read(rows[i], a, first_row + i * 8);
  for (int tile = 0; tile < kAccumulatorTiles; ++tile) {
    for (int i = 0; i < 2; ++i) {
      Operand column[kCodeDepth];
      read(column, b, tile * 8 + lane % 4 * 2 + i);
      for (int j = 0; j < 2; ++j) {
        int& sum = accumulators[tile][j * 2 + i];
        for (int depth = 0; depth < kCodeDepth; ++depth) sum += rows[j][depth] * column[depth];
      }
    }
  }
}

template <typename Operand, int kAccumulatorTiles, typename Descriptor>
void wgmma(float (&accumulators)[kAccumulatorTiles][4], Descriptor a, Descriptor b) {
  emulation::check_same_descriptor(a.start);
  if constexpr (std::is_same_v<Operand, Tf32>) {
    emulate_wgmma_tf32(accumulators, [&](int row, int depth) { return a.pair(row, 2 * depth); }, b);
  } else {
    emulate_wgmma<Operand>(accumulators, [&](int row, int depth) { return a.pair(row, depth); }, b);
  }
}

template <typename Operand, int kAccumulatorTiles>
void wgmma(float (&accumulators)[kAccumulatorTiles][4], const unsigned (&a)[4], SmemDescriptor b) {
  emulation::Warp& warp = emulation::warp();
  std::copy_n(a, 4, warp.a[emulation::lane()]);
  emulation::sync_warp();
  if constexpr (std::is_same_v<Operand, Tf32>) {
    emulate_wgmma_tf32(
        accumulators,
        [&](int row, int depth) { return warp.a[row % 8 * 4 + depth % 4][row % 16 / 8 + depth / 4 * 2]; }, b);
  } else {
    emulate_wgmma<Operand>(
        accumulators,
        [&](int row, int depth) { return warp.a[row % 8 * 4 + depth % 8 / 2][row % 16 / 8 + depth / 8 * 2]; },
        b);
  }
  emulation::sync_warp();
}

template <typename Operand, int kAccumulatorTiles>
void wgmma_overwrite(float (&accumulators)[kAccumulatorTiles][4], const unsigned (&a)[4], SmemDescriptor b) {
  for (auto& tile : accumulators) std::fill_n(tile, 4, 0.0f);
  wgmma<Operand>(accumulators, a, b);
}

}  // namespace convswap
