#pragma once

#include <cstdint>

#include "cpu/activation_lanes.h"
#include "cpu/lanes.h"

// This header is compiled once per instruction set, in files with their own compiler options. It includes no
// header with inline functions: the linker keeps one copy of each, which might be one that only the newest
// processors can run.

namespace convswap {

constexpr int kMaxFilters = 6;     // filters of a register tile
constexpr int kMaxPositions = 64;  // positions of a register tile with the widest vectors
constexpr int kMaxVectors = 4;     // vectors of positions of a register tile

// One register tile: several filters at consecutive positions of the phase image (see position_lanes.cc).
struct PositionTile {
  const float* image;          // the first position
  const int64_t* tap_offsets;  // the element that each tap reads, relative to the position
  int64_t taps;
  const float* weights;  // weight of the first filter and tap
  int64_t weight_pitch;  // distance of two filters' weights
  bool accumulates;      // adds to `results`; false: overwrites them
  float* results;        // filters x kMaxPositions
};

// Several filters at one position, vectorised over taps.
struct DotProducts {
  const float* x;  // the elements that the taps read, contiguous
  int64_t taps;
  const float* weights;  // filters x taps
  int64_t filters;
  float* results;  // kMaxPositions apart
};

// A row of convolution outputs to which bias, residual and a clamp are applied.
struct FinishedRow {
  const float* values;
  float bias;
  const float* residual;  // may be null
  bool clips;             // clamps results to [lower, upper]
  float lower, upper;     // lower <= upper
  int64_t columns;
  float* target;
};

struct PositionLanesKernels {
  int positions;  // most positions of a tile
  int lanes;      // floats of a vector
  // Indexed by vectors of positions, then by filters; the entries of index 0 are unused.
  void (*compute[kMaxVectors + 1][kMaxFilters + 1])(const PositionTile&);
  void (*dot_products)(const DotProducts&);
  void (*finish)(const FinishedRow&);
  ActivationKernels activations;
};

const PositionLanesKernels& position_lanes_kernels_avx512();
const PositionLanesKernels& position_lanes_kernels_avx2();
const PositionLanesKernels& position_lanes_kernels_baseline();

namespace {

// Loads each tap once for all filters and each weight once for all positions: with 6 filters and 4 vectors,
// 24 multiply-adds for 10 loads. All accumulators stay in registers.
template <int kLanes, int kVectors, int kFilters>
void compute_tile(const PositionTile& tile) {
  typedef Lanes<kLanes> L;
  typename L::Vector accumulators[kFilters][kVectors] = {};
  if (tile.accumulates) {
#pragma GCC unroll 8
    for (int k = 0; k < kFilters; ++k) {
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        accumulators[k][v] = L::load(tile.results + k * kMaxPositions + v * kLanes);
      }
    }
  }
  for (int64_t tap = 0; tap < tile.taps; ++tap) {
    const float* source = tile.image + tile.tap_offsets[tap];
    typename L::Vector x[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) x[v] = L::load(source + v * kLanes);
#pragma GCC unroll 8
    for (int k = 0; k < kFilters; ++k) {
      const float weight = tile.weights[k * tile.weight_pitch + tap];
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) accumulators[k][v] += x[v] * weight;
    }
  }
#pragma GCC unroll 8
  for (int k = 0; k < kFilters; ++k) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      L::store(tile.results + k * kMaxPositions + v * kLanes, accumulators[k][v]);
    }
  }
}

template <int kLanes, int kFilters>
void dot_products_of_filters(const DotProducts& dot, int64_t first) {
  typedef Lanes<kLanes> L;
  typename L::Vector accumulators[kFilters] = {};
  const float* const weights = dot.weights + first * dot.taps;
  for (int64_t tap = 0; tap < dot.taps; tap += kLanes) {
    const LaneMask<kLanes> mask(0, dot.taps - tap);
    const typename L::Vector x = mask.load(dot.x + tap);
#pragma GCC unroll 8
    for (int k = 0; k < kFilters; ++k) accumulators[k] += x * mask.load(weights + k * dot.taps + tap);
  }
  for (int k = 0; k < kFilters; ++k) {
    float halves[kLanes];
    L::store(halves, accumulators[k]);
#pragma GCC unroll 8
    for (int half = kLanes / 2; half > 0; half /= 2) {
#pragma GCC unroll 8
      for (int lane = 0; lane < half; ++lane) halves[lane] += halves[lane + half];
    }
    dot.results[(first + k) * kMaxPositions] = halves[0];
  }
}

// Computes eight filters at once, since a multiply-add has the latency of eight.
template <int kLanes>
void dot_products(const DotProducts& dot) {
  int64_t first = 0;
  for (; first + 8 <= dot.filters; first += 8) dot_products_of_filters<kLanes, 8>(dot, first);
  for (; first < dot.filters; ++first) dot_products_of_filters<kLanes, 1>(dot, first);
}

// `access` loads and stores vectors: Lanes, or LaneMask for a part of the lanes.
template <int kLanes, typename Access>
void finish_vector(const FinishedRow& row, int64_t i, const Access& access) {
  typename Lanes<kLanes>::Vector value = access.load(row.values + i) + row.bias;
  if (row.residual != nullptr) value += access.load(row.residual + i);
  if (row.clips) value = clipped<kLanes>(value, row.lower, row.upper);
  access.store(row.target + i, value);
}

template <int kLanes>
void finish_lanes(const FinishedRow& row) {
  int64_t i = 0;
  for (; i + kLanes <= row.columns; i += kLanes) finish_vector<kLanes>(row, i, Lanes<kLanes>{});
  if (i < row.columns) finish_vector<kLanes>(row, i, LaneMask<kLanes>(0, row.columns - i));
}

template <int kLanes, int kVectors, int kFilters>
constexpr void set_kernels(PositionLanesKernels& kernels) {
  kernels.compute[kVectors][kFilters] = compute_tile<kLanes, kVectors, kFilters>;
  if constexpr (kFilters > 1) set_kernels<kLanes, kVectors, kFilters - 1>(kernels);
  if constexpr (kFilters == kMaxFilters && kVectors > 1) set_kernels<kLanes, kVectors - 1, kFilters>(kernels);
}

template <int kLanes, int kVectors>
constexpr PositionLanesKernels kernels_for() {
  static_assert(kLanes * kVectors <= kMaxPositions && kVectors <= kMaxVectors);
  PositionLanesKernels kernels = {kLanes * kVectors,
                                  kLanes,
                                  {},
                                  dot_products<kLanes>,
                                  finish_lanes<kLanes>,
                                  activation_kernels_for<kLanes>()};
  set_kernels<kLanes, kVectors, kMaxFilters>(kernels);
  return kernels;
}

}  // namespace
}  // namespace convswap
