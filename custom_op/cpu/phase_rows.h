#pragma once

// Images split into phases: rows (and columns) with the same coordinate modulo the stride lie together. In a
// phase image the elements that a tap reads for neighbouring outputs are contiguous, for any stride.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "conv/problem.h"
#include "cpu/row_lanes_kernel.h"

namespace convswap {

// The phases of one spatial axis.
struct PhaseAxis {
  int64_t stride;
  int64_t dilation;
  int64_t phases;  // number of phases that some tap reads
  int64_t halo;    // rows or columns of a phase that the last taps read beyond the output's extent

  PhaseAxis(const ConvProblem& problem, size_t axis)
      : stride(problem.stride[axis]), dilation(problem.dilation[axis]) {
    const int64_t last = (problem.filter[axis] - 1) * dilation;
    phases = std::min(stride, last + 1);
    halo = last / stride;
  }

  int64_t phase(int64_t tap) const { return tap * dilation % stride; }
  int64_t shift(int64_t tap) const { return tap * dilation / stride; }
};

// The range of a phase's columns (or rows) that lie inside the image. Column j of the phase is input column
// j * stride + offset.
struct InBounds {
  int64_t begin, end;

  InBounds(int64_t offset, int64_t stride, int64_t input, int64_t columns) {
    begin = std::min(columns, offset >= 0 ? 0 : (-offset + stride - 1) / stride);
    end = offset >= input ? begin : std::clamp((input - offset - 1) / stride + 1, begin, columns);
  }
};

// Copies image rows into phase planes, one plane for each pair of a row phase and a column phase. Elements
// become float; padding becomes zeros.
class PhaseRows {
 public:
  // The part of one row phase to copy.
  struct Region {
    int64_t first_row;   // the image row of the phase's first row
    InBounds in_bounds;  // the rows that lie inside the image
    int64_t rows;
    int64_t first_column, columns;  // in columns of a phase
  };

  // `pitch` is the distance between rows, `plane` that between planes, in elements. Writing a row may
  // overwrite up to a vector behind its columns, so a plane's rows are filled in ascending order.
  PhaseRows(const ConvProblem& problem, const RowLanesKernels& kernels, int64_t pitch, int64_t plane)
      : problem_(problem), kernels_(kernels), columns_(problem, 2), pitch_(pitch), plane_(plane) {}

  // The image plane that outputs of depth `o` read for `slice`, a pair of a channel and a filter depth.
  // `group` points to the group's channels. Null if the plane lies in the padding.
  template <typename T>
  const T* slice(const T* group, int64_t o, int64_t slice) const {
    const int64_t c = slice / problem_.filter[0], t = slice % problem_.filter[0];
    const int64_t d = o * problem_.stride[0] + t * problem_.dilation[0] - problem_.pad_begin[0];
    if (d < 0 || d >= problem_.input[0]) return nullptr;
    return group + (c * problem_.input[0] + d) * problem_.input[1] * problem_.input[2];
  }

  // Fills the planes of one row phase and all column phases. A null slice is padding, as is an image without
  // columns.
  template <typename T>
  void fill(const T* slice, const Region& region, float* planes) const {
    if (slice == nullptr || problem_.input[2] == 0) return clear_rows(0, region.rows, region, planes);
    const auto [begin, end] = region.in_bounds;
    clear_rows(0, begin, region, planes);
    if (begin < end) {
      const int64_t first = region.first_row + begin * problem_.stride[1];
      copy_rows(slice + first * problem_.input[2], end - begin, region, planes + begin * pitch_);
    }
    clear_rows(end, region.rows, region, planes);
  }

 private:
  void clear_rows(int64_t first, int64_t end, const Region& region, float* planes) const {
    for (int64_t phase = 0; phase < columns_.phases && first < end; ++phase) {
      kernels_.clear({nullptr, 0, 0, 0, end - first, region.columns, planes + phase * plane_ + first * pitch_,
                      pitch_, 0});
    }
  }

  // Copies `rows` rows, which are a stride apart in the image, to every column phase.
  template <typename T>
  void copy_rows(const T* source, int64_t rows, const Region& region, float* planes) const {
    const int64_t source_pitch = problem_.stride[1] * problem_.input[2];
    if constexpr (std::is_same_v<T, float>) {
      copy_floats(source, source_pitch, rows, region, planes);
    } else {
      thread_local std::vector<float> widened;
      widened.resize(problem_.input[2]);
      for (int64_t row = 0; row < rows; ++row, source += source_pitch, planes += pitch_) {
        for (int64_t i = 0; i < problem_.input[2]; ++i) widened[i] = static_cast<float>(source[i]);
        copy_floats(widened.data(), 0, 1, region, planes);
      }
    }
  }

  void copy_floats(const float* source, int64_t source_pitch, int64_t rows, const Region& region,
                   float* planes) const {
    const int64_t stride = columns_.stride, columns = region.columns;
    const int64_t first = region.first_column * stride - problem_.pad_begin[2];
    // The end of the source columns that exist, of those that the region reads.
    const int64_t end = std::min(problem_.input[2] - first, stride * columns);
    const StripRows copied{source + first, source_pitch, -first, end, rows, columns, planes, pitch_, plane_};
    if (stride == 1) return kernels_.copy(copied);
    if (stride == 2 && columns_.phases == 2) return kernels_.deinterleave(copied);
    for (int64_t phase = 0; phase < columns_.phases; ++phase) {
      const InBounds in_bounds(first + phase, stride, problem_.input[2], columns);
      for (int64_t row = 0; row < rows; ++row) {
        float* const target = planes + phase * plane_ + row * pitch_;
        std::fill_n(target, columns, 0.0f);
        const float* const from = source + row * source_pitch + first + phase;
        for (int64_t j = in_bounds.begin; j < in_bounds.end; ++j) target[j] = from[j * stride];
      }
    }
  }

  const ConvProblem& problem_;
  const RowLanesKernels& kernels_;
  PhaseAxis columns_;
  int64_t pitch_, plane_;
};

}  // namespace convswap
