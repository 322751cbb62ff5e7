#pragma once

// A *strip*: the part of a group's channels that a band of output rows reads, with padding. It usually fits
// into the L1 or L2 cache. Rows and columns with the same coordinate modulo the stride lie together, as in
// position_lanes.cc. For tap (c, t, r, s), output (p, q) reads
//
//   plane(c, t, (r * dilation) % stride, (s * dilation) % stride)
//       [p + r * dilation / stride][q + s * dilation / stride]
//
// Taps of one filter column that read the same plane form a *run*. The rows that they read are
// dilation / gcd(dilation, stride) apart. Long rows are cut into segments.

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "conv/arithmetic.h"
#include "cpu/epilogue_rows.h"
#include "cpu/phase_rows.h"
#include "cpu/row_lanes_kernel.h"

namespace convswap {

class RowStrip {
 public:
  // A strip takes at most kMaxBytes, or as much as kMinRows output rows need, up to kMaxBytesOfMinRows. Rows
  // that two bands read are copied twice, so bands should not be too small.
  static constexpr int64_t kMinRows = 8, kMaxBytes = 32 * 1024, kMaxBytesOfMinRows = 256 * 1024;
  // Largest number of columns of a segment, or of halos if these are more columns: the halo between two
  // segments is copied twice.
  static constexpr int64_t kSegmentColumns = 1024, kHalosPerSegment = 8;
  static constexpr int64_t kLineFloats = 16;  // floats of a cache line

  struct Segment {
    int64_t first_column, columns;  // of the convolution's output
  };

  // Makes bands small enough for `jobs_wanted` jobs, if the problem has that many rows.
  RowStrip(const ConvProblem& problem, const RowLanesKernels& kernels, int64_t jobs_wanted)
      : problem_(problem), kernels_(kernels), rows_(problem, 1), columns_(problem, 2) {
    make_segments();
    make_bands(jobs_wanted);
    make_runs();
  }

  // Number of elements of the smallest possible strip. It is a double, since the product may exceed 64 bits.
  static double min_elements(const ConvProblem& problem) {
    const PhaseAxis rows(problem, 1), columns(problem, 2);
    const Pool& pool = problem.epilogue.pool;
    const int64_t min_rows = pool.kind == PoolKind::none ? 1 : std::min(problem.output[1], pool.kernel[0]);
    double product = 1;
    for (const int64_t factor : {problem.channels_per_group(), problem.filter[0], rows.phases, columns.phases,
                                 min_rows + rows.halo, problem.output[2] + columns.halo + 2 * kLineFloats}) {
      product *= static_cast<double>(factor);
    }
    return product;
  }

  const std::vector<RowBand>& bands() const { return bands_; }
  const std::vector<Segment>& segments() const { return segments_; }
  const std::vector<TapRun>& runs() const { return runs_; }
  // The filter's taps in the order of the runs.
  const std::vector<int64_t>& taps() const { return taps_; }
  int64_t pitch() const { return pitch_; }        // distance of two rows in elements
  int64_t row_step() const { return row_step_; }  // distance in rows of two taps of a run
  int64_t elements() const { return planes() * plane_; }

  // Fills the strip with the input of the outputs at depth `o` in one band and one segment, given by index.
  template <typename T>
  void fill(const T* group, int64_t o, int64_t band, int64_t segment, float* strip) const {
    const PhaseRows phase_rows(problem_, kernels_, pitch_, plane_);
    for (int64_t i = 0; i < slices(); ++i) {
      const T* const slice = phase_rows.slice(group, o, i);
      for (int64_t phase = 0; phase < rows_.phases; ++phase, strip += columns_.phases * plane_) {
        phase_rows.fill(slice, region(band, phase, segment), strip);
      }
    }
  }

 private:
  // The number of pairs of a channel and a filter depth.
  int64_t slices() const { return problem_.channels_per_group() * problem_.filter[0]; }
  int64_t planes() const { return slices() * rows_.phases * columns_.phases; }

  void make_segments() {
    const int64_t width = problem_.output[2];
    const int64_t max_columns = std::max(kSegmentColumns, kHalosPerSegment * columns_.halo);
    // A pool window might span two segments.
    const bool pools = problem_.epilogue.pool.kind != PoolKind::none;
    const int64_t count = pools ? 1 : ceil_divide(width, max_columns);
    const int64_t columns = count == 1 ? width : round_up(ceil_divide(width, count), kLineFloats);
    for (int64_t first = 0; first < width; first += columns) {
      segments_.push_back({first, std::min(columns, width - first)});
    }
    pitch_ = round_up(columns + columns_.halo, kLineFloats);
    // Rows at a power-of-two distance would map to few sets of the cache.
    if (pitch_ % (8 * kLineFloats) == 0) pitch_ += kLineFloats;
  }

  void make_bands(int64_t jobs_wanted) {
    const int64_t row_bytes = planes() * pitch_ * static_cast<int64_t>(sizeof(float));
    const int64_t rows = problem_.output[1];
    const int64_t bytes = std::clamp((kMinRows + rows_.halo) * row_bytes, kMaxBytes, kMaxBytesOfMinRows);
    int64_t max_rows = std::clamp<int64_t>(bytes / row_bytes - rows_.halo, 1, rows);
    const int64_t jobs_per_band =
        problem_.batch * problem_.group * problem_.output[0] * static_cast<int64_t>(segments_.size());
    const int64_t wanted = ceil_divide(rows, std::max<int64_t>(1, ceil_divide(jobs_wanted, jobs_per_band)));
    max_rows = std::min(max_rows, round_up(wanted, kRowsPerPass));
    int64_t results = max_rows;
    if (const Pool& pool = problem_.epilogue.pool; pool.kind != PoolKind::none) {
      results = std::max<int64_t>(1, (max_rows - pool.kernel[0]) / pool.stride[0] + 1);
      max_rows = std::min(rows, (results - 1) * pool.stride[0] + pool.kernel[0]);
    }
    // kLineFloats more, because a vector may be read or written beyond the last row's end.
    plane_ = (max_rows + rows_.halo) * pitch_ + kLineFloats;
    for (int64_t first = 0; first < problem_.result[1]; first += results) {
      const RowBand& band =
          bands_.emplace_back(problem_, first, std::min(results, problem_.result[1] - first));
      for (int64_t phase = 0; phase < rows_.phases; ++phase) {
        valid_rows_.emplace_back(first_input_row(band, phase), rows_.stride, problem_.input[1],
                                 band.rows + rows_.halo);
      }
    }
  }

  int64_t first_input_row(const RowBand& band, int64_t phase) const {
    return band.first_row * rows_.stride + phase - problem_.pad_begin[1];
  }

  PhaseRows::Region region(int64_t band, int64_t phase, int64_t segment) const {
    const auto& [first_column, columns] = segments_[segment];
    return {first_input_row(bands_[band], phase), valid_rows_[band * rows_.phases + phase],
            bands_[band].rows + rows_.halo, first_column, columns + columns_.halo};
  }

  void make_runs() {
    const int64_t common = std::gcd(rows_.stride, rows_.dilation);
    const int64_t next_tap = rows_.stride / common;  // distance of taps that read the same plane
    row_step_ = next_tap < problem_.filter[1] ? rows_.dilation / common : 1;
    for (int64_t slice = 0; slice < slices(); ++slice) {
      for (int64_t s = 0; s < problem_.filter[2]; ++s) {
        for (int64_t first = 0; first < std::min(next_tap, problem_.filter[1]); ++first) {
          for (int64_t r = first; r < problem_.filter[1]; r += next_tap) add_tap(slice, r, s, r == first);
        }
      }
    }
  }

  void add_tap(int64_t slice, int64_t r, int64_t s, bool is_first) {
    if (is_first || runs_.back().taps == kMaxRunTaps) {
      const int64_t plane = (slice * rows_.phases + rows_.phase(r)) * columns_.phases + columns_.phase(s);
      runs_.push_back({plane * plane_ + rows_.shift(r) * pitch_ + columns_.shift(s),
                       static_cast<int64_t>(taps_.size()), 0});
    }
    ++runs_.back().taps;
    taps_.push_back((slice * problem_.filter[1] + r) * problem_.filter[2] + s);
  }

  const ConvProblem& problem_;
  const RowLanesKernels& kernels_;
  PhaseAxis rows_;
  PhaseAxis columns_;
  std::vector<Segment> segments_;
  std::vector<RowBand> bands_;
  std::vector<InBounds> valid_rows_;  // for each phase of each band
  std::vector<TapRun> runs_;
  std::vector<int64_t> taps_;
  int64_t pitch_ = 0;
  int64_t plane_ = 0;  // elements of one phase of one slice
  int64_t row_step_ = 1;
};

}  // namespace convswap
