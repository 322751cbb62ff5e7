#pragma once

// The part of a group's channels that a band of output rows needs, padded, and small enough for the nearest
// caches: a *strip*. In it rows and columns with the same coordinate modulo the stride lie together, as in
// position_lanes.cc, so that output (p, q) reads for tap (c, t, r, s)
//
//   plane(c, t, (r * dilation) % stride, (s * dilation) % stride)
//       [p + r * dilation / stride][q + s * dilation / stride]
//
// Taps of one filter column in one plane make a *run*: with d = dilation / gcd(dilation, stride) the rows
// that they read are d apart. Long rows are cut into segments.

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
  // A band of more rows than the fewest takes at most kMostBytes; what it shares with the next is copied
  // twice.
  static constexpr int64_t kFewestRows = 8, kMostBytes = 32 * 1024, kMostBytesOfFewRows = 256 * 1024;
  // Columns of a segment, unless a filter reaches so far that its copies would cost more than they save.
  static constexpr int64_t kFewestColumns = 1024;
  static constexpr int64_t kReachesPerSegment = 8;
  static constexpr int64_t kLine = 16;  // floats of a cache line

  struct Segment {
    int64_t first_column, columns;  // of the convolution's output
  };

  // With at least so many bands, where there are as many rows.
  RowStrip(const ConvProblem& problem, const RowLanesKernels& kernels, int64_t jobs_wanted)
      : problem_(problem), kernels_(kernels), rows_(problem, 1), columns_(problem, 2) {
    make_segments();
    make_bands(jobs_wanted);
    make_runs();
  }

  // Of the strip of the shortest band, a double as in position_lanes.cc.
  static double least_elements(const ConvProblem& problem) {
    const PhaseAxis rows(problem, 1), columns(problem, 2);
    const Pool& pool = problem.epilogue.pool;
    const int64_t least_rows = pool.kind == PoolKind::none ? 1 : std::min(problem.output[1], pool.kernel[0]);
    double product = 1;
    for (const int64_t factor : {problem.channels_per_group(), problem.filter[0], rows.phases, columns.phases,
                                 least_rows + rows.reach, problem.output[2] + columns.reach + 2 * kLine}) {
      product *= static_cast<double>(factor);
    }
    return product;
  }

  const std::vector<RowBand>& bands() const { return bands_; }
  const std::vector<Segment>& segments() const { return segments_; }
  const std::vector<TapRun>& runs() const { return runs_; }
  // The filter's taps in the order of the runs.
  const std::vector<int64_t>& taps() const { return taps_; }
  int64_t pitch() const { return pitch_; }        // elements from one row to the next
  int64_t row_step() const { return row_step_; }  // between the rows that a run reads
  int64_t elements() const { return planes() * plane_; }

  // Copies what the outputs of depth `o`, of one band and of one segment read, numbers of those above.
  template <typename T>
  void fill(const T* group, int64_t o, int64_t band, int64_t segment, float* strip) const {
    const PhaseRows phase_rows(problem_, kernels_, pitch_, plane_);
    for (int64_t i = 0; i < slices(); ++i) {
      const T* const slice = phase_rows.slice(group, o, i);
      for (int64_t phase = 0; phase < rows_.phases; ++phase, strip += columns_.phases * plane_) {
        phase_rows.fill(slice, window(band, phase, segment), strip);
      }
    }
  }

 private:
  // Of a channel and a depth of the filter.
  int64_t slices() const { return problem_.channels_per_group() * problem_.filter[0]; }
  int64_t planes() const { return slices() * rows_.phases * columns_.phases; }

  void make_segments() {
    const int64_t width = problem_.output[2];
    const int64_t most = std::max(kFewestColumns, kReachesPerSegment * columns_.reach);
    // A window of a pool would lie in two.
    const bool pools = problem_.epilogue.pool.kind != PoolKind::none;
    const int64_t count = pools ? 1 : ceil_divide(width, most);
    const int64_t each = count == 1 ? width : round_up(ceil_divide(width, count), kLine);
    for (int64_t first = 0; first < width; first += each) {
      segments_.push_back({first, std::min(each, width - first)});
    }
    pitch_ = round_up(each + columns_.reach, kLine);
    // Rows that a power of two lies between would share few places of the cache.
    if (pitch_ % (8 * kLine) == 0) pitch_ += kLine;
  }

  void make_bands(int64_t jobs_wanted) {
    const int64_t row_bytes = planes() * pitch_ * static_cast<int64_t>(sizeof(float));
    const int64_t rows = problem_.output[1];
    const int64_t bytes =
        std::clamp((kFewestRows + rows_.reach) * row_bytes, kMostBytes, kMostBytesOfFewRows);
    int64_t most = std::clamp<int64_t>(bytes / row_bytes - rows_.reach, 1, rows);
    const int64_t others =
        problem_.batch * problem_.group * problem_.output[0] * static_cast<int64_t>(segments_.size());
    const int64_t wanted = ceil_divide(rows, std::max<int64_t>(1, ceil_divide(jobs_wanted, others)));
    most = std::min(most, round_up(wanted, kRowsAtOnce));
    int64_t results = most;
    if (const Pool& pool = problem_.epilogue.pool; pool.kind != PoolKind::none) {
      results = std::max<int64_t>(1, (most - pool.kernel[0]) / pool.stride[0] + 1);
      most = std::min(rows, (results - 1) * pool.stride[0] + pool.kernel[0]);
    }
    // With room for what lies behind the last row's end.
    plane_ = (most + rows_.reach) * pitch_ + kLine;
    for (int64_t first = 0; first < problem_.result[1]; first += results) {
      const RowBand& band =
          bands_.emplace_back(problem_, first, std::min(results, problem_.result[1] - first));
      for (int64_t phase = 0; phase < rows_.phases; ++phase) {
        inside_rows_.emplace_back(first_input_row(band, phase), rows_.stride, problem_.input[1],
                                  band.rows + rows_.reach);
      }
    }
  }

  int64_t first_input_row(const RowBand& band, int64_t phase) const {
    return band.first_row * rows_.stride + phase - problem_.pad_begin[1];
  }

  PhaseRows::Window window(int64_t band, int64_t phase, int64_t segment) const {
    const auto& [first_column, columns] = segments_[segment];
    return {first_input_row(bands_[band], phase), inside_rows_[band * rows_.phases + phase],
            bands_[band].rows + rows_.reach, first_column, columns + columns_.reach};
  }

  void make_runs() {
    const int64_t common = std::gcd(rows_.stride, rows_.dilation);
    const int64_t next_tap = rows_.stride / common;  // in the same plane
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
    if (is_first || runs_.back().taps == kLongestRun) {
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
  std::vector<InsideColumns> inside_rows_;  // of every phase of every band
  std::vector<TapRun> runs_;
  std::vector<int64_t> taps_;
  int64_t pitch_ = 0;
  int64_t plane_ = 0;  // elements of one phase of one slice
  int64_t row_step_ = 1;
};

}  // namespace convswap
