#pragma once

#include <cstdint>

#include "cpu/activation_lanes.h"
#include "cpu/lanes.h"

// This header is compiled once per instruction set, in files with compiler options of their own. It includes
// nothing that defines an inline function: the linker keeps one copy of each, and might keep one that only
// the newest processors can run.

namespace convswap {

constexpr int kMostFilters = 6;     // filters computed at once
constexpr int kMostPositions = 64;  // positions computed at once, on the widest vectors
constexpr int kMostVectors = 4;     // of a tile

// One register tile: `filters` filters at a run of consecutive positions of the phase image (see
// position_lanes.cc).
struct PositionTile {
  const float* image;          // the first position
  const int64_t* tap_offsets;  // where each tap reads, relative to a position
  int64_t taps;
  const float* weights;  // of the first filter and tap
  int64_t weight_pitch;  // from filter to filter
  bool goes_on;          // from the sums that are there
  float* sums;           // filters x kMostPositions
};

// Filters at one position, by vectors of taps.
struct DotProducts {
  const float* x;  // what the taps read, one after the other
  int64_t taps;
  const float* weights;  // filters x taps
  int64_t filters;
  float* sums;  // kMostPositions apart
};

// What a convolution's sums become with the bias and the residual, limited or not.
struct FinishedRow {
  const float* sums;
  float bias;
  const float* residual;  // may be null
  bool clips;             // to [least, most]
  float least, most;      // least <= most
  int64_t columns;
  float* target;
};

struct PositionLanesKernels {
  int positions;  // how many a tile has at most
  int lanes;      // of which a vector has so many
  // By vectors of positions, then filters; those of none are unused.
  void (*compute[kMostVectors + 1][kMostFilters + 1])(const PositionTile&);
  void (*multiply_one)(const DotProducts&);
  void (*finish)(const FinishedRow&);
  ActivationKernels activations;
};

const PositionLanesKernels& position_lanes_kernels_avx512();
const PositionLanesKernels& position_lanes_kernels_avx2();
const PositionLanesKernels& position_lanes_kernels_baseline();

namespace {

// Each tap is loaded once for all filters, each weight once for all positions: with 6 filters and 4 vectors,
// 24 multiply-adds for 10 loads. All sums stay in registers.
template <int kLanes, int kVectors, int kFilters>
void compute_tile(const PositionTile& tile) {
  typedef Lanes<kLanes> L;
  typename L::Vector sums[kFilters][kVectors] = {};
  if (tile.goes_on) {
#pragma GCC unroll 8
    for (int k = 0; k < kFilters; ++k) {
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        sums[k][v] = L::load(tile.sums + k * kMostPositions + v * kLanes);
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
      for (int v = 0; v < kVectors; ++v) sums[k][v] += x[v] * weight;
    }
  }
#pragma GCC unroll 8
  for (int k = 0; k < kFilters; ++k) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      L::store(tile.sums + k * kMostPositions + v * kLanes, sums[k][v]);
    }
  }
}

template <int kLanes, int kFilters>
void multiply_filters(const DotProducts& dot, int64_t first) {
  typedef Lanes<kLanes> L;
  typename L::Vector sums[kFilters] = {};
  const float* const weights = dot.weights + first * dot.taps;
  for (int64_t tap = 0; tap < dot.taps; tap += kLanes) {
    const Part<kLanes> part(0, dot.taps - tap);
    const typename L::Vector x = part.load(dot.x + tap);
#pragma GCC unroll 8
    for (int k = 0; k < kFilters; ++k) sums[k] += x * part.load(weights + k * dot.taps + tap);
  }
  for (int k = 0; k < kFilters; ++k) {
    float halves[kLanes];
    L::store(halves, sums[k]);
#pragma GCC unroll 8
    for (int half = kLanes / 2; half > 0; half /= 2) {
#pragma GCC unroll 8
      for (int lane = 0; lane < half; ++lane) halves[lane] += halves[lane + half];
    }
    dot.sums[(first + k) * kMostPositions] = halves[0];
  }
}

// Eight filters at once: a multiply-add takes the time of eight.
template <int kLanes>
void multiply_one(const DotProducts& dot) {
  int64_t first = 0;
  for (; first + 8 <= dot.filters; first += 8) multiply_filters<kLanes, 8>(dot, first);
  for (; first < dot.filters; ++first) multiply_filters<kLanes, 1>(dot, first);
}

// `Some`: all lanes of a vector, or a part of them.
template <int kLanes, typename Some>
void finish_vector(const FinishedRow& row, int64_t i, const Some& some) {
  typename Lanes<kLanes>::Vector value = some.load(row.sums + i) + row.bias;
  if (row.residual != nullptr) value += some.load(row.residual + i);
  if (row.clips) value = clipped<kLanes>(value, row.least, row.most);
  some.store(row.target + i, value);
}

template <int kLanes>
void finish_lanes(const FinishedRow& row) {
  int64_t i = 0;
  for (; i + kLanes <= row.columns; i += kLanes) finish_vector<kLanes>(row, i, Lanes<kLanes>{});
  if (i < row.columns) finish_vector<kLanes>(row, i, Part<kLanes>(0, row.columns - i));
}

template <int kLanes, int kVectors, int kFilters>
constexpr void set_kernels(PositionLanesKernels& kernels) {
  kernels.compute[kVectors][kFilters] = compute_tile<kLanes, kVectors, kFilters>;
  if constexpr (kFilters > 1) set_kernels<kLanes, kVectors, kFilters - 1>(kernels);
  if constexpr (kFilters == kMostFilters && kVectors > 1)
    set_kernels<kLanes, kVectors - 1, kFilters>(kernels);
}

template <int kLanes, int kVectors>
constexpr PositionLanesKernels kernels_for() {
  static_assert(kLanes * kVectors <= kMostPositions && kVectors <= kMostVectors);
  PositionLanesKernels kernels = {kLanes * kVectors,
                                  kLanes,
                                  {},
                                  multiply_one<kLanes>,
                                  finish_lanes<kLanes>,
                                  activation_kernels_for<kLanes>()};
  set_kernels<kLanes, kVectors, kMostFilters>(kernels);
  return kernels;
}

}  // namespace
}  // namespace convswap
