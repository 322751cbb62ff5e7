#pragma once

#include "cpu/activation_lanes.h"
#include "cpu/lanes.h"

// Like position_lanes_kernel.h, this header is compiled once per instruction set.

namespace convswap {

constexpr int kMaxRunTaps = 7;   // longer filter columns have several runs
constexpr int kRowsPerPass = 4;  // output rows of a register tile

// Taps of one filter column that read equally spaced rows of the strip (see row_strip.h).
struct TapRun {
  int64_t offset;        // the strip element that the first tap reads for the first output
  int64_t first_weight;  // index of the first tap's weight
  int taps;
};

// Output rows of one filter. `strip_pitch` is the distance in the strip between the rows that consecutive
// outputs read, and also between the rows that consecutive taps of a run read.
struct OutputRows {
  const float* strip;
  int64_t strip_pitch;
  const TapRun* runs;
  int64_t run_count;
  const float* weights;
  float bias;
  bool clips;          // clamps results to [lower, upper]
  float lower, upper;  // lower <= upper
  int64_t rows, width;
  float* target;
  int64_t target_pitch;
};

// A copy of image rows into the rows of a strip or a phase image. Each row may overwrite up to a vector
// behind its `columns` elements.
struct StripRows {
  const float* source;    // the element for column 0 of the first phase
  int64_t source_pitch;   // distance of two source rows
  int64_t begin, end;     // the source elements that exist; zeros replace the others
  int64_t rows, columns;  // of each phase
  float* strip;
  int64_t pitch;  // distance of two strip rows
  int64_t plane;  // distance of the first phase's plane and the second's
};

struct RowLanesKernels {
  int lanes;  // floats of a vector; a row may be read or written so far beyond its width
  void (*compute)(const OutputRows&);
  void (*clear)(const StripRows&);         // fills one phase with zeros; ignores the source
  void (*copy)(const StripRows&);          // stride 1: copies to the only phase
  void (*deinterleave)(const StripRows&);  // stride 2: copies even and odd columns to two phases
  ActivationKernels activations;
};

const RowLanesKernels& row_lanes_kernels_avx512();
const RowLanesKernels& row_lanes_kernels_avx2();
const RowLanesKernels& row_lanes_kernels_baseline();

namespace {

// One register tile: kVectors vectors of columns in each of kRows rows. The last vector may overlap the one
// before.
template <int kLanes, int kRows, int kVectors>
struct RowTile {
  typedef Lanes<kLanes> L;
  typename L::Vector accumulators[kRows][kVectors];
  int64_t last_vector;  // distance from the first column to the last vector

  // Each row of the strip is loaded once for all taps of the run.
  template <int kTaps>
  __attribute__((always_inline)) void add(const float* source, int64_t pitch, const float* weights) {
#pragma GCC unroll 16
    for (int row = 0; row < kRows + kTaps - 1; ++row, source += pitch) {
      typename L::Vector x[kVectors];
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v)
        x[v] = L::load(source + (v == kVectors - 1 ? last_vector : v * kLanes));
#pragma GCC unroll 8
      for (int tap = 0; tap < kTaps; ++tap) {
        if (row - tap < 0 || row - tap >= kRows) continue;
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) accumulators[row - tap][v] += x[v] * weights[tap];
      }
    }
  }

  __attribute__((always_inline)) void add_runs(const OutputRows& rows, const float* strip) {
    for (int64_t i = 0; i < rows.run_count; ++i) {
      const TapRun& run = rows.runs[i];
      const float* const source = strip + run.offset;
      const float* const weights = rows.weights + run.first_weight;
      static_assert(kMaxRunTaps == 7);
      switch (run.taps) {
        case 1:
          add<1>(source, rows.strip_pitch, weights);
          break;
        case 2:
          add<2>(source, rows.strip_pitch, weights);
          break;
        case 3:
          add<3>(source, rows.strip_pitch, weights);
          break;
        case 4:
          add<4>(source, rows.strip_pitch, weights);
          break;
        case 5:
          add<5>(source, rows.strip_pitch, weights);
          break;
        case 6:
          add<6>(source, rows.strip_pitch, weights);
          break;
        default:
          add<7>(source, rows.strip_pitch, weights);
      }
    }
  }

  __attribute__((always_inline)) void store(const OutputRows& rows, float* target) const {
#pragma GCC unroll 8
    for (int row = 0; row < kRows; ++row, target += rows.target_pitch) {
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        typename L::Vector value = accumulators[row][v] + rows.bias;
        if (rows.clips) value = clipped<kLanes>(value, rows.lower, rows.upper);
        if (kVectors == 1 && rows.width < kLanes) {
          LaneMask<kLanes>(0, rows.width).store(target, value);
        } else {
          L::store(target + (v == kVectors - 1 ? last_vector : v * kLanes), value);
        }
      }
    }
  }
};

template <int kLanes, int kRows, int kVectors>
__attribute__((noinline)) void compute_columns(const OutputRows& rows, const float* strip, float* target,
                                               int64_t last_vector) {
  RowTile<kLanes, kRows, kVectors> tile{};
  tile.last_vector = last_vector;
  tile.add_runs(rows, strip);
  tile.store(rows, target);
}

// Computes kRows rows in tiles of up to kMaxTileVectors vectors. The last vector is moved back to end with
// the row.
template <int kLanes, int kMaxTileVectors, int kRows>
void compute_rows(const OutputRows& rows, const float* strip, float* target) {
  const int64_t vectors = rows.width <= kLanes ? 1 : (rows.width + kLanes - 1) / kLanes;
  for (int64_t v = 0; v < vectors; v += kMaxTileVectors) {
    const int64_t count = vectors - v < kMaxTileVectors ? vectors - v : kMaxTileVectors;
    const bool ends = v + count == vectors && rows.width > kLanes;
    const int64_t first = v * kLanes;
    const int64_t last_vector = ends ? rows.width - kLanes - first : (count - 1) * kLanes;
    if (count == 1) compute_columns<kLanes, kRows, 1>(rows, strip + first, target + first, last_vector);
    if (count == 2) compute_columns<kLanes, kRows, 2>(rows, strip + first, target + first, last_vector);
    if constexpr (kMaxTileVectors == 4) {
      if (count == 3) compute_columns<kLanes, kRows, 3>(rows, strip + first, target + first, last_vector);
      if (count == 4) compute_columns<kLanes, kRows, 4>(rows, strip + first, target + first, last_vector);
    }
  }
}

template <int kLanes, int kMaxTileVectors>
void compute_all_rows(const OutputRows& rows) {
  const float* strip = rows.strip;
  float* target = rows.target;
  int64_t remaining_rows = rows.rows;
  for (; remaining_rows >= kRowsPerPass; remaining_rows -= kRowsPerPass) {
    compute_rows<kLanes, kMaxTileVectors, kRowsPerPass>(rows, strip, target);
    strip += kRowsPerPass * rows.strip_pitch;
    target += kRowsPerPass * rows.target_pitch;
  }
  static_assert(kRowsPerPass == 4);
  if (remaining_rows == 3) compute_rows<kLanes, kMaxTileVectors, 3>(rows, strip, target);
  if (remaining_rows == 2) compute_rows<kLanes, kMaxTileVectors, 2>(rows, strip, target);
  if (remaining_rows == 1) compute_rows<kLanes, kMaxTileVectors, 1>(rows, strip, target);
}

template <int kLanes>
void clear_rows(const StripRows& rows) {
  typedef Lanes<kLanes> L;
  float* strip = rows.strip;
  for (int64_t row = 0; row < rows.rows; ++row, strip += rows.pitch) {
    for (int64_t j = 0; j < rows.columns; j += kLanes) L::store(strip + j, typename L::Vector{});
  }
}

template <int kLanes>
void copy_rows(const StripRows& rows) {
  typedef Lanes<kLanes> L;
  const float* source = rows.source;
  float* strip = rows.strip;
  const int64_t begin = rows.begin, end = rows.end;
  const auto copy_masked = [&](int64_t j) {
    L::store(strip + j, LaneMask<kLanes>(begin - j, end - j).load(source + j));
  };
  for (int64_t row = 0; row < rows.rows; ++row, source += rows.source_pitch, strip += rows.pitch) {
    int64_t j = 0;
    for (; j < begin; j += kLanes) copy_masked(j);
    for (; j + kLanes <= end; j += kLanes) L::store(strip + j, L::load(source + j));
    for (; j < rows.columns; j += kLanes) copy_masked(j);
  }
}

template <int kLanes>
void deinterleave_rows(const StripRows& rows) {
  typedef Lanes<kLanes> L;
  typename L::Indices evens, odds;
#pragma GCC unroll 16
  for (int lane = 0; lane < kLanes; ++lane) evens[lane] = 2 * lane, odds[lane] = 2 * lane + 1;
  const float* source = rows.source;
  float* strip = rows.strip;
  const int64_t begin = rows.begin, end = rows.end;
  const auto store_phases = [&](int64_t j, const typename L::Vector& low, const typename L::Vector& high) {
    L::store(strip + j, __builtin_shuffle(low, high, evens));
    L::store(strip + rows.plane + j, __builtin_shuffle(low, high, odds));
  };
  const auto deinterleave_masked = [&](int64_t j) {
    const int64_t i = 2 * j, next = i + kLanes;
    store_phases(j, LaneMask<kLanes>(begin - i, end - i).load(source + i),
                 LaneMask<kLanes>(begin - next, end - next).load(source + next));
  };
  for (int64_t row = 0; row < rows.rows; ++row, source += rows.source_pitch, strip += rows.pitch) {
    int64_t j = 0;
    for (; 2 * j < begin; j += kLanes) deinterleave_masked(j);
    for (; 2 * (j + kLanes) <= end; j += kLanes) {
      store_phases(j, L::load(source + 2 * j), L::load(source + 2 * j + kLanes));
    }
    for (; j < rows.columns; j += kLanes) deinterleave_masked(j);
  }
}

// kVectors: vectors of a tile's row, 2 or 4. The accumulators of 4 rows must leave registers for the
// operands.
template <int kLanes, int kVectors>
constexpr RowLanesKernels row_lanes_kernels_for() {
  static_assert(kVectors == 2 || kVectors == 4);
  return {kLanes,
          compute_all_rows<kLanes, kVectors>,
          clear_rows<kLanes>,
          copy_rows<kLanes>,
          deinterleave_rows<kLanes>,
          activation_kernels_for<kLanes>()};
}

}  // namespace
}  // namespace convswap
