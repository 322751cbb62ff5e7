#pragma once

#include <cstdint>

#include "cpu/activation_lanes.h"

// This header is compiled once per instruction set, in files with compiler options of their own. It includes
// nothing that defines an inline function: the linker keeps one copy of each, and might keep one that only
// the newest processors can run.

namespace convswap {

constexpr int kMostFilters = 6;     // filters computed at once
constexpr int kMostPositions = 64;  // positions computed at once, on the widest vectors

// One register tile: `filters` filters at a run of consecutive positions of the phase image (see direct.cc).
struct DirectTile {
  const float* image;          // the first position
  const int64_t* tap_offsets;  // where each tap reads, relative to a position
  int64_t taps;
  const float* weights;  // filters x taps
  float* sums;           // filters x kMostPositions
};

struct DirectKernels {
  int positions;                                            // how many a tile has
  void (*by_filters[kMostFilters + 1])(const DirectTile&);  // index 0 is unused
  ActivationKernels activations;
};

const DirectKernels& direct_kernels_avx512();
const DirectKernels& direct_kernels_avx2();
const DirectKernels& direct_kernels_baseline();

namespace {

// Each tap is loaded once for all filters, each weight once for all positions: with 6 filters and 4 vectors,
// 24 multiply-adds for 10 loads. All sums stay in registers.
template <int kLanes, int kVectors, int kFilters>
void compute_tile(const DirectTile& tile) {
  typedef float Vector __attribute__((vector_size(kLanes * sizeof(float))));
  typedef float Unaligned __attribute__((vector_size(kLanes * sizeof(float)), aligned(4), may_alias));
  Vector sums[kFilters][kVectors] = {};
  for (int64_t tap = 0; tap < tile.taps; ++tap) {
    const float* source = tile.image + tile.tap_offsets[tap];
    Vector x[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) x[v] = *reinterpret_cast<const Unaligned*>(source + v * kLanes);
#pragma GCC unroll 8
    for (int k = 0; k < kFilters; ++k) {
      const float weight = tile.weights[k * tile.taps + tap];
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) sums[k][v] += x[v] * weight;
    }
  }
#pragma GCC unroll 8
  for (int k = 0; k < kFilters; ++k) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      *reinterpret_cast<Unaligned*>(tile.sums + k * kMostPositions + v * kLanes) = sums[k][v];
    }
  }
}

template <int kLanes, int kVectors>
constexpr DirectKernels kernels_for() {
  static_assert(kLanes * kVectors <= kMostPositions);
  return {kLanes * kVectors,
          {nullptr, compute_tile<kLanes, kVectors, 1>, compute_tile<kLanes, kVectors, 2>,
           compute_tile<kLanes, kVectors, 3>, compute_tile<kLanes, kVectors, 4>,
           compute_tile<kLanes, kVectors, 5>, compute_tile<kLanes, kVectors, 6>},
          activation_kernels_for<kLanes>()};
}

}  // namespace
}  // namespace convswap
