#pragma once

// A lane's way down: outputs of neighbouring columns, row by row.

#include "cuda/primitives/global_memory.cuh"
#include "cuda/sliding_rows/piece.cuh"
#include "cuda/sliding_rows/results.cuh"
#include "cuda/sliding_rows/row.cuh"

namespace convswap::sliding_rows {

// The filter of a lane's plane, as it lies in memory: whatever was done to it at once would wait for it.
template <typename T, typename S>
struct Filter {
  int number;
  T taps[S::taps * S::taps];

  __device__ Filter(const Arguments<T>& a, const Lane<S>& at) {
    const int image = static_cast<int>(a.image_filters.quotient_of_any(at.plane));
    number = at.plane - image * static_cast<int>(a.image_filters.divisor);
    const T* const from = a.w + static_cast<long long>(number) * (S::taps * S::taps);
#pragma unroll
    for (int i = 0; i < S::taps * S::taps; ++i) taps[i] = from[i];
  }
};

// kTogether: columns that are one load; kAhead: rows that are asked for before their use, 1 or whole periods.
template <typename T, typename S, int kTogether, int kAhead>
class Strip {
 public:
  __device__ Strip(const Arguments<T>& arguments, const Lane<S>& lane, const Filter<T, S>& filter)
      : a_(arguments), at_(lane) {
    first_row_ = at_.first_row * S::stride - a_.pad_height;
    end_row_ = static_cast<unsigned>(max(0, min(first_row_ + rows_seen(), a_.input_height)));
    const int source = static_cast<int>(a_.multiplier.quotient_of_any(at_.plane));
    const long long row = static_cast<long long>(source) * a_.input_height + first_row_;
    x_ = global_address(a_.x) + (row * a_.input_width + at_.piece_column) * int(sizeof(T));
#pragma unroll
    for (int i = 0; i < kAhead; ++i) ask(i, ahead_[i]);
    bias_ = a_.b == nullptr ? 0.0f : static_cast<float>(a_.b[filter.number]);
#pragma unroll
    for (int i = 0; i < S::taps * S::taps; ++i) {
      weights_[i / S::taps][i % S::taps] = static_cast<float>(filter.taps[i]);
    }
  }

  __device__ void run() {
    const int count = rows_seen();
#pragma unroll 1
    for (int first = 0; first < count; first += kSteps) steps<0>(first, count);
  }

 private:
  static constexpr int kSteps = kAhead > S::period ? kAhead : S::period;  // a multiple of both

  // Rows of x that the strip's outputs see.
  __device__ int rows_seen() const { return (at_.rows - 1) * S::stride + S::taps; }

  // Asks for a row, counted from the strip's first.
  __device__ void ask(int number, Piece<T, S::piece, kTogether>& piece) const {
    const int row = first_row_ + number;
    const bool is_inside = static_cast<unsigned>(row) < end_row_;
    const long long further = static_cast<long long>(number * a_.input_width) * int(sizeof(T));
    piece.load(x_ + further, is_inside ? a_.input_width - at_.piece_column : 0);
  }

  // The rows from number first + kStep on, of which first + kSteps is the next call's. A row is added to the
  // sums of all output rows that it is part of; the first row of one sets them.
  template <int kStep>
  __device__ void steps(int first, int count) {
    if constexpr (kStep < kSteps) {
      if (first + kStep >= count) return;
      Piece<T, S::piece, kTogether>& own = ahead_[kStep % kAhead];
      const Row<S> row(own, at_, static_cast<int>(a_.lanes.divisor));
      ask(first + kStep + kAhead, own);
#pragma unroll
      for (int r = kStep % S::stride; r < S::taps; r += S::stride) {
        float (&sums)[S::outputs] = sums_[place_of((kStep - r) / S::stride)];
#pragma unroll
        for (int i = 0; i < S::outputs; ++i) {
          if (r == 0) sums[i] = bias_;
#pragma unroll
          for (int s = 0; s < S::taps; ++s) sums[i] += row.columns[i * S::stride + s] * weights_[r][s];
        }
      }
      constexpr int kBegun = kStep - (S::taps - 1);  // when the output row began whose last row this is
      if constexpr ((kBegun + S::period) % S::stride == 0) {
        const int output = at_.first_row + (first + kBegun) / S::stride;
        const bool has_begun = kBegun >= 0 || first > 0;
        const long long line = static_cast<long long>(at_.plane) * a_.output_height + output;
        write_row(a_, line * a_.output_width + at_.column, a_.output_width - at_.column,
                  at_.writes && has_begun, sums_[place_of((kBegun + S::period) / S::stride)]);
      }
      steps<kStep + 1>(first, count);
    }
  }

  // Where the sums of an output row are, counted from one whose first row of x begins a period.
  static constexpr __device__ int place_of(int output) { return (output + S::sums) % S::sums; }

  const Arguments<T>& a_;
  const Lane<S>& at_;
  unsigned end_row_;      // behind the last row of x that the strip sees and the image has
  int first_row_;         // above the image where there is padding
  unsigned long long x_;  // where the lane's piece of that row begins
  float weights_[S::taps][S::taps];
  float bias_;
  float sums_[S::sums][S::outputs] = {};
  Piece<T, S::piece, kTogether> ahead_[kAhead];
};

}  // namespace convswap::sliding_rows
