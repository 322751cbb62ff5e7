#pragma once

// A thread's part of the depthwise convolution: the pixels of a channel that its results depend on, and
// these.

#include "conv/small_floats.h"
#include "cuda/called_activation.cuh"
#include "cuda/primitives/global_load.cuh"
#include "cuda/primitives/global_store.cuh"
#include "cuda/primitives/nan_extremes.cuh"
#include "cuda/primitives/small_float_pairs.cuh"
#include "cuda/primitives/tensor_core.cuh"
#include "cuda/separable/arguments.h"
#include "cuda/separable/layout.h"

namespace convswap::separable {

__device__ inline float finished(const Finish& finish, float sum) {
  if (finish.limits) return smaller_or_nan(larger_or_nan(sum, finish.least), finish.most);
  return activated(finish.epilogue, sum);
}

// Numbers as they come from memory, four neighbours or one in a word. They stay so until they are multiplied:
// whatever is done to them at once waits for them.
template <typename T>
struct Raw {
  using Four = uint2;
  static __device__ void load_one(bool condition, unsigned long long address, unsigned& to) {
    load_global_16_if(condition, address, to);
  }
  static __device__ Four joined(const unsigned (&words)[4]) {
    return make_uint2(words[0] | words[1] << 16, words[2] | words[3] << 16);
  }
  static __device__ float number(unsigned word) { return lower_of_pair<T>(word); }
  static __device__ float number(const Four& four, int i) {
    const unsigned pair = i < 2 ? four.x : four.y;
    return i % 2 == 0 ? lower_of_pair<T>(pair) : upper_of_pair<T>(pair);
  }
  // A result as the convolution behind takes it.
  static __device__ float rounded(float value) { return static_cast<float>(T(value)); }
};
template <>
struct Raw<float> {
  using Four = uint4;
  static __device__ void load_one(bool condition, unsigned long long address, unsigned& to) {
    load_global_if(condition, address, to);
  }
  static __device__ Four joined(const unsigned (&words)[4]) {
    return make_uint4(words[0], words[1], words[2], words[3]);
  }
  static __device__ float number(unsigned word) { return __uint_as_float(word); }
  static __device__ float number(const Four& four, int i) {
    return __uint_as_float(i == 0 ? four.x : i == 1 ? four.y : i == 2 ? four.z : four.w);
  }
  static __device__ float rounded(float value) { return rounded_to_tf32(value); }
};

template <typename T, typename S>
class Window {
 public:
  // `row` and `column`: of the output, where the thread's results begin; `channel`: of the first step.
  __device__ Window(const Arguments<T>& a, int image, int row, int column, int channel)
      : channel_(channel),
        first_row_(row * S::kStride - kTaps / 2),
        first_column_(column * S::kStride),
        height_(a.input_height),
        width_(a.input_width),
        depth_(a.depth),
        has_bias_(a.db != nullptr),
        together_(a.loads_together),
        pixels_(global_address(a.x) +
                ((static_cast<long long>(image) * a.depth + channel) * height_ * width_ +
                 static_cast<long long>(first_row_) * width_ + first_column_) *
                    kBytes),
        weights_(global_address(a.d) + channel * (kTaps * kTaps * kBytes)),
        bias_(global_address(a.db) + channel * kBytes) {}

  // Asks for what the next step needs.
  __device__ void load() {
    const bool is_there = channel_ < depth_;
    is_there_ = is_there;
#pragma unroll
    for (int i = 0; i < kTaps * kTaps; ++i) {
      taps_[i] = 0;
      Raw<T>::load_one(is_there, weights_ + i * kBytes, taps_[i]);
    }
    addend_ = 0;
    Raw<T>::load_one(is_there && has_bias_, bias_, addend_);
#pragma unroll
    for (int i = 0; i < S::kInputRows; ++i) {
      const bool is_row = is_there && static_cast<unsigned>(first_row_ + i) < static_cast<unsigned>(height_);
      load_row(is_row, pixels_ + static_cast<long long>(i) * width_ * kBytes, rows_[i]);
    }
    channel_ += kStepChannels;
    weights_ += kStepChannels * kTaps * kTaps * kBytes;
    bias_ += kStepChannels * kBytes;
    pixels_ += static_cast<long long>(kStepChannels) * height_ * width_ * kBytes;
  }

  // The results of a row of what was loaded.
  __device__ float4 results(const Finish& finish, int row) const {
    float sums[kColumns];
#pragma unroll
    for (int column = 0; column < kColumns; ++column) {
      float sum = Raw<T>::number(addend_);
#pragma unroll
      for (int i = 0; i < kTaps * kTaps; ++i) {
        const Row& from = rows_[row * S::kStride + i / kTaps];
        sum = fmaf(from.number(column * S::kStride + i % kTaps), Raw<T>::number(taps_[i]), sum);
      }
      // Behind the last channel, where weights are zeros, whatever an activation makes of 0.
      sums[column] = is_there_ ? Raw<T>::rounded(finished(finish, sum)) : 0.0f;
    }
    return make_float4(sums[0], sums[1], sums[2], sums[3]);
  }

 private:
  static constexpr int kBytes = static_cast<int>(sizeof(T));
  static constexpr int kFours = kColumns * S::kStride / 4;
  // Columns beyond the fours, on the right; there is one on the left.
  static constexpr int kRight = S::kInputColumns - 1 - 4 * kFours;
  static_assert(kRight == 0 || kRight == 1);

  struct Row {
    unsigned left, right;
    typename Raw<T>::Four fours[kFours];

    __device__ float number(int column) const {
      if (column == 0) return Raw<T>::number(left);
      if (column > 4 * kFours) return Raw<T>::number(right);
      return Raw<T>::number(fours[(column - 1) / 4], (column - 1) % 4);
    }
  };

  __device__ void load_row(bool is_row, unsigned long long from, Row& to) const {
    to.left = to.right = 0;
    Raw<T>::load_one(is_row && first_column_ > 0 && first_column_ <= width_, from - kBytes, to.left);
#pragma unroll
    for (int i = 0; i < kFours; ++i) {
      const int column = first_column_ + 4 * i;
      // The width is a multiple of four.
      const bool is_wanted = is_row && column < width_;
      if (together_) {
        to.fours[i] = {};
        load_global_if(is_wanted, from + 4 * i * kBytes, to.fours[i]);
      } else {
        unsigned words[4] = {};
#pragma unroll
        for (int j = 0; j < 4; ++j) Raw<T>::load_one(is_wanted, from + (4 * i + j) * kBytes, words[j]);
        to.fours[i] = Raw<T>::joined(words);
      }
    }
    if constexpr (kRight == 1) {
      Raw<T>::load_one(is_row && first_column_ + 4 * kFours < width_, from + 4 * kFours * kBytes, to.right);
    }
  }

  int channel_, first_row_, first_column_, height_, width_, depth_;
  bool has_bias_, together_;
  bool is_there_ = false;  // the channel of what was loaded
  unsigned long long pixels_, weights_, bias_;
  Row rows_[S::kInputRows];
  unsigned taps_[kTaps * kTaps], addend_;
};

}  // namespace convswap::separable
