#pragma once

// Images whose rows (or columns) with the same coordinate modulo the stride lie together, each such phase for
// itself: there what every tap reads lies side by side.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "conv/problem.h"
#include "cpu/row_lanes_kernel.h"

namespace convswap {

// How one spatial axis is laid out so.
struct PhaseAxis {
  int64_t stride;
  int64_t dilation;
  int64_t phases;  // that some tap reads
  int64_t reach;   // rows or columns of one phase beyond the output's that the last taps need

  PhaseAxis(const ConvProblem& problem, size_t axis)
      : stride(problem.stride[axis]), dilation(problem.dilation[axis]) {
    const int64_t last = (problem.filter[axis] - 1) * dilation;
    phases = std::min(stride, last + 1);
    reach = last / stride;
  }

  int64_t phase(int64_t tap) const { return tap * dilation % stride; }
  int64_t shift(int64_t tap) const { return tap * dilation / stride; }
};

// Which columns of a phase lie inside the image: column j is input column j * stride + offset.
struct InsideColumns {
  int64_t begin, end;

  InsideColumns(int64_t offset, int64_t stride, int64_t input, int64_t columns) {
    begin = std::min(columns, offset >= 0 ? 0 : (-offset + stride - 1) / stride);
    end = offset >= input ? begin : std::clamp((input - offset - 1) / stride + 1, begin, columns);
  }
};

// Copies rows of an image there: what each pair of phases reads to a plane of its own, as float, with zeros
// for padding.
class PhaseRows {
 public:
  // The rows of one phase that are wanted, and what of each: numbers of outputs, but for what lies behind.
  struct Window {
    int64_t first_row;     // of the image
    InsideColumns inside;  // which of the rows lie in it
    int64_t rows;
    int64_t first_column, columns;
  };

  // From row to row lies `pitch`, from plane to plane `plane`. Behind a row's columns, so far as a vector
  // reaches, anything may be overwritten that is filled before.
  PhaseRows(const ConvProblem& problem, const RowLanesKernels& kernels, int64_t pitch, int64_t plane)
      : problem_(problem), kernels_(kernels), columns_(problem, 2), pitch_(pitch), plane_(plane) {}

  // Channel and depth of the filter number `slice` that the outputs of depth `o` read, of a group's channels;
  // null where it lies in the padding.
  template <typename T>
  const T* slice(const T* group, int64_t o, int64_t slice) const {
    const int64_t c = slice / problem_.filter[0], t = slice % problem_.filter[0];
    const int64_t d = o * problem_.stride[0] + t * problem_.dilation[0] - problem_.pad_begin[0];
    if (d < 0 || d >= problem_.input[0]) return nullptr;
    return group + (c * problem_.input[0] + d) * problem_.input[1] * problem_.input[2];
  }

  // The planes of one phase of rows, of all phases of columns. A null slice lies in the padding, as do all
  // columns of an image that has none.
  template <typename T>
  void fill(const T* slice, const Window& window, float* planes) const {
    if (slice == nullptr || problem_.input[2] == 0) return clear_rows(0, window.rows, window, planes);
    const auto [begin, end] = window.inside;
    clear_rows(0, begin, window, planes);
    if (begin < end) {
      const int64_t first = window.first_row + begin * problem_.stride[1];
      copy_rows(slice + first * problem_.input[2], end - begin, window, planes + begin * pitch_);
    }
    clear_rows(end, window.rows, window, planes);
  }

 private:
  void clear_rows(int64_t first, int64_t end, const Window& window, float* planes) const {
    for (int64_t phase = 0; phase < columns_.phases && first < end; ++phase) {
      kernels_.clear({nullptr, 0, 0, 0, end - first, window.columns, planes + phase * plane_ + first * pitch_,
                      pitch_, 0});
    }
  }

  // So many rows of every phase of columns, whose rows in the image are a stride apart.
  template <typename T>
  void copy_rows(const T* source, int64_t rows, const Window& window, float* planes) const {
    const int64_t source_pitch = problem_.stride[1] * problem_.input[2];
    if constexpr (std::is_same_v<T, float>) {
      copy_floats(source, source_pitch, rows, window, planes);
    } else {
      thread_local std::vector<float> widened;
      widened.resize(problem_.input[2]);
      for (int64_t row = 0; row < rows; ++row, source += source_pitch, planes += pitch_) {
        for (int64_t i = 0; i < problem_.input[2]; ++i) widened[i] = static_cast<float>(source[i]);
        copy_floats(widened.data(), 0, 1, window, planes);
      }
    }
  }

  void copy_floats(const float* source, int64_t source_pitch, int64_t rows, const Window& window,
                   float* planes) const {
    const int64_t stride = columns_.stride, columns = window.columns;
    const int64_t first = window.first_column * stride - problem_.pad_begin[2];
    // Those that are there, of what the columns read.
    const int64_t end = std::min(problem_.input[2] - first, stride * columns);
    const StripRows copied{source + first, source_pitch, -first, end, rows, columns, planes, pitch_, plane_};
    if (stride == 1) return kernels_.copy(copied);
    if (stride == 2 && columns_.phases == 2) return kernels_.part(copied);
    for (int64_t phase = 0; phase < columns_.phases; ++phase) {
      const InsideColumns inside(first + phase, stride, problem_.input[2], columns);
      for (int64_t row = 0; row < rows; ++row) {
        float* const target = planes + phase * plane_ + row * pitch_;
        std::fill_n(target, columns, 0.0f);
        const float* const from = source + row * source_pitch + first + phase;
        for (int64_t j = inside.begin; j < inside.end; ++j) target[j] = from[j * stride];
      }
    }
  }

  const ConvProblem& problem_;
  const RowLanesKernels& kernels_;
  PhaseAxis columns_;
  int64_t pitch_, plane_;
};

}  // namespace convswap
