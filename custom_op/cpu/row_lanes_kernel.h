#pragma once

#include "cpu/activation_lanes.h"
#include "cpu/lanes.h"

// As position_lanes_kernel.h, this header is compiled once per instruction set.

namespace convswap {

constexpr int kLongestRun = 7;  // taps of a run; longer filters have several
constexpr int kRowsAtOnce = 4;

// Taps of one filter column whose rows follow each other in the strip (see row_lanes.cc).
struct TapRun {
  int64_t offset;  // where the first tap reads for the first output, in the strip
  int64_t first;   // of its weights
  int taps;
};

// Rows of one filter's outputs. What the next row reads lies `strip_pitch` further on in the strip, which is
// also the distance between the rows that the taps of a run read.
struct OutputRows {
  const float* strip;
  int64_t strip_pitch;
  const TapRun* runs;
  int64_t run_count;
  const float* weights;
  float bias;
  bool clips;         // what is stored, to [least, most]
  float least, most;  // least <= most
  int64_t rows, width;
  float* target;
  int64_t target_pitch;
};

// Rows of an image that are copied into a strip or a phase image, each to `columns` places of a row of its
// planes. What lies behind these may be overwritten, so far as a vector reaches.
struct StripRows {
  const float* source;  // what is at column 0 of the first phase; only [begin, end) of it are there
  int64_t source_pitch;
  int64_t begin, end;
  int64_t rows, columns;
  float* strip;
  int64_t pitch;
  int64_t plane;  // from the first phase's plane to the second's
};

struct RowLanesKernels {
  int lanes;  // how many columns beyond its width a row may be read or written
  void (*compute)(const OutputRows&);
  void (*clear)(const StripRows&);  // zeros, of a single phase, with no source
  void (*copy)(const StripRows&);   // columns of a single phase, with a stride of 1
  void (*part)(const StripRows&);   // of two, with a stride of 2
  ActivationKernels activations;
};

const RowLanesKernels& row_lanes_kernels_avx512();
const RowLanesKernels& row_lanes_kernels_avx2();
const RowLanesKernels& row_lanes_kernels_baseline();

namespace {

// One register tile: kRows rows at kVectors runs of columns, the last of which may overlap the one before.
template <int kLanes, int kRows, int kVectors>
struct RowTile {
  typedef Lanes<kLanes> L;
  typename L::Vector sums[kRows][kVectors];
  int64_t last;  // from the first column to the last vector's

  // Each row of the strip is loaded once for all taps of the run.
  template <int kTaps>
  __attribute__((always_inline)) void add(const float* source, int64_t pitch, const float* weights) {
#pragma GCC unroll 16
    for (int row = 0; row < kRows + kTaps - 1; ++row, source += pitch) {
      typename L::Vector x[kVectors];
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) x[v] = L::load(source + (v == kVectors - 1 ? last : v * kLanes));
#pragma GCC unroll 8
      for (int tap = 0; tap < kTaps; ++tap) {
        if (row - tap < 0 || row - tap >= kRows) continue;
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) sums[row - tap][v] += x[v] * weights[tap];
      }
    }
  }

  __attribute__((always_inline)) void add_runs(const OutputRows& rows, const float* strip) {
    for (int64_t i = 0; i < rows.run_count; ++i) {
      const TapRun& run = rows.runs[i];
      const float* const source = strip + run.offset;
      const float* const weights = rows.weights + run.first;
      static_assert(kLongestRun == 7);
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
        typename L::Vector value = sums[row][v] + rows.bias;
        if (rows.clips) value = clipped<kLanes>(value, rows.least, rows.most);
        if (kVectors == 1 && rows.width < kLanes) {
          Part<kLanes>(0, rows.width).store(target, value);
        } else {
          L::store(target + (v == kVectors - 1 ? last : v * kLanes), value);
        }
      }
    }
  }
};

template <int kLanes, int kRows, int kVectors>
__attribute__((noinline)) void compute_columns(const OutputRows& rows, const float* strip, float* target,
                                               int64_t last) {
  RowTile<kLanes, kRows, kVectors> tile{};
  tile.last = last;
  tile.add_runs(rows, strip);
  tile.store(rows, target);
}

// Columns from the left, the last vector so far back that it ends with the row.
template <int kLanes, int kMost, int kRows>
void compute_rows(const OutputRows& rows, const float* strip, float* target) {
  const int64_t vectors = rows.width <= kLanes ? 1 : (rows.width + kLanes - 1) / kLanes;
  for (int64_t v = 0; v < vectors; v += kMost) {
    const int64_t count = vectors - v < kMost ? vectors - v : kMost;
    const bool ends = v + count == vectors && rows.width > kLanes;
    const int64_t first = v * kLanes;
    const int64_t last = ends ? rows.width - kLanes - first : (count - 1) * kLanes;
    if (count == 1) compute_columns<kLanes, kRows, 1>(rows, strip + first, target + first, last);
    if (count == 2) compute_columns<kLanes, kRows, 2>(rows, strip + first, target + first, last);
    if constexpr (kMost == 4) {
      if (count == 3) compute_columns<kLanes, kRows, 3>(rows, strip + first, target + first, last);
      if (count == 4) compute_columns<kLanes, kRows, 4>(rows, strip + first, target + first, last);
    }
  }
}

template <int kLanes, int kMost>
void compute_all_rows(const OutputRows& rows) {
  const float* strip = rows.strip;
  float* target = rows.target;
  int64_t left = rows.rows;
  for (; left >= kRowsAtOnce; left -= kRowsAtOnce) {
    compute_rows<kLanes, kMost, kRowsAtOnce>(rows, strip, target);
    strip += kRowsAtOnce * rows.strip_pitch;
    target += kRowsAtOnce * rows.target_pitch;
  }
  static_assert(kRowsAtOnce == 4);
  if (left == 3) compute_rows<kLanes, kMost, 3>(rows, strip, target);
  if (left == 2) compute_rows<kLanes, kMost, 2>(rows, strip, target);
  if (left == 1) compute_rows<kLanes, kMost, 1>(rows, strip, target);
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
  const auto copy_part = [&](int64_t j) {
    L::store(strip + j, Part<kLanes>(begin - j, end - j).load(source + j));
  };
  for (int64_t row = 0; row < rows.rows; ++row, source += rows.source_pitch, strip += rows.pitch) {
    int64_t j = 0;
    for (; j < begin; j += kLanes) copy_part(j);
    for (; j + kLanes <= end; j += kLanes) L::store(strip + j, L::load(source + j));
    for (; j < rows.columns; j += kLanes) copy_part(j);
  }
}

template <int kLanes>
void part_rows(const StripRows& rows) {
  typedef Lanes<kLanes> L;
  typename L::Indices evens, odds;
#pragma GCC unroll 16
  for (int lane = 0; lane < kLanes; ++lane) evens[lane] = 2 * lane, odds[lane] = 2 * lane + 1;
  const float* source = rows.source;
  float* strip = rows.strip;
  const int64_t begin = rows.begin, end = rows.end;
  const auto store_parted = [&](int64_t j, const typename L::Vector& low, const typename L::Vector& high) {
    L::store(strip + j, __builtin_shuffle(low, high, evens));
    L::store(strip + rows.plane + j, __builtin_shuffle(low, high, odds));
  };
  const auto part_some = [&](int64_t j) {
    const int64_t i = 2 * j, next = i + kLanes;
    store_parted(j, Part<kLanes>(begin - i, end - i).load(source + i),
                 Part<kLanes>(begin - next, end - next).load(source + next));
  };
  for (int64_t row = 0; row < rows.rows; ++row, source += rows.source_pitch, strip += rows.pitch) {
    int64_t j = 0;
    for (; 2 * j < begin; j += kLanes) part_some(j);
    for (; 2 * (j + kLanes) <= end; j += kLanes) {
      store_parted(j, L::load(source + 2 * j), L::load(source + 2 * j + kLanes));
    }
    for (; j < rows.columns; j += kLanes) part_some(j);
  }
}

// kVectors, 2 or 4: of a row of a tile; of 4 rows the sums must leave room for the operands.
template <int kLanes, int kVectors>
constexpr RowLanesKernels row_lanes_kernels_for() {
  static_assert(kVectors == 2 || kVectors == 4);
  return {kLanes,
          compute_all_rows<kLanes, kVectors>,
          clear_rows<kLanes>,
          copy_rows<kLanes>,
          part_rows<kLanes>,
          activation_kernels_for<kLanes>()};
}

}  // namespace
}  // namespace convswap
