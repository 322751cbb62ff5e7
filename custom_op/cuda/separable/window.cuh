#pragma once

// A thread's part of the depthwise convolution: the pixels of a channel that its results depend on, and
// these.

#include "conv/small_floats.h"
#include "cuda/epilogue/activations.cuh"
#include "cuda/primitives/global_memory.cuh"
#include "cuda/primitives/mma.cuh"
#include "cuda/primitives/nan_min_max.cuh"
#include "cuda/primitives/small_float_pairs.cuh"
#include "cuda/separable/arguments.h"

namespace convswap::separable {

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
  static __device__ float number(unsigned word) { return unpack_low<T>(word); }
  static __device__ float number(const Four& four, int i) {
    const unsigned pair = i < 2 ? four.x : four.y;
    return i % 2 == 0 ? unpack_low<T>(pair) : unpack_high<T>(pair);
  }
  // A result as it lies in shared memory: rounded when it is multiplied.
  static __device__ float rounded(float value) { return value; }
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
  static __device__ float rounded(float value) { return round_to_tf32(value); }
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
    if (together_) {
      load_rows<true>(is_there);
    } else {
      load_rows<false>(is_there);
    }
    channel_ += kStepChannels;
    weights_ += kStepChannels * kTaps * kTaps * kBytes;
    bias_ += kStepChannels * kBytes;
    pixels_ += static_cast<long long>(kStepChannels) * height_ * width_ * kBytes;
  }

  // Puts the results of what was loaded to `to`, rows of kTileColumns.
  __device__ void put(const EpilogueParams& finish, float* to) const {
    float accumulators[S::kRows][kColumns];
    convolve(accumulators);
    // Behind the last channel, where weights are zeros, whatever an activation makes of 0.
    if (finish.only_clamps) {
      const float least = is_there_ ? finish.least : 0.0f, most = is_there_ ? finish.most : 0.0f;
#pragma unroll
      for (int i = 0; i < S::kRows; ++i) {
        const auto result = [&](int j) {
          return Raw<T>::rounded(min_nan(max_nan(accumulators[i][j], least), most));
        };
        *row_of(to, i) = make_float4(result(0), result(1), result(2), result(3));
      }
      return;
    }
#pragma unroll
    for (int i = 0; i < S::kRows; ++i) {
      *row_of(to, i) =
          make_float4(accumulators[i][0], accumulators[i][1], accumulators[i][2], accumulators[i][3]);
    }
    if (!is_there_) return;
    // The formulas stand in the code once for all rows, since they take the compiler long.
#pragma unroll 1
    for (int i = 0; i < S::kRows; ++i) {
      const float4 sum = *row_of(to, i);
      float values[] = {sum.x, sum.y, sum.z, sum.w};
      activate_values<Activation::silu, Activation::hard_swish>(finish.epilogue, values);
      *row_of(to, i) = make_float4(Raw<T>::rounded(values[0]), Raw<T>::rounded(values[1]),
                                   Raw<T>::rounded(values[2]), Raw<T>::rounded(values[3]));
    }
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

  static __device__ float4* row_of(float* results, int row) {
    return reinterpret_cast<float4*>(results + row * S::kTileColumns);
  }

  __device__ void convolve(float (&accumulators)[S::kRows][kColumns]) const {
    float taps[kTaps * kTaps];
#pragma unroll
    for (int i = 0; i < kTaps * kTaps; ++i) taps[i] = Raw<T>::number(taps_[i]);
#pragma unroll
    for (int i = 0; i < S::kRows; ++i) {
#pragma unroll
      for (int j = 0; j < kColumns; ++j) accumulators[i][j] = Raw<T>::number(addend_);
    }
#pragma unroll
    for (int from = 0; from < S::kInputRows; ++from) {
      float pixels[S::kInputColumns];
#pragma unroll
      for (int j = 0; j < S::kInputColumns; ++j) pixels[j] = rows_[from].number(j);
#pragma unroll
      for (int i = 0; i < S::kRows; ++i) {
        const int tap_row = from - i * S::kStride;
        if (tap_row < 0 || tap_row >= kTaps) continue;
#pragma unroll
        for (int j = 0; j < kColumns; ++j) {
#pragma unroll
          for (int tap = 0; tap < kTaps; ++tap) {
            accumulators[i][j] =
                fmaf(pixels[j * S::kStride + tap], taps[tap_row * kTaps + tap], accumulators[i][j]);
          }
        }
      }
    }
  }

  template <bool kTogether>
  __device__ void load_rows(bool is_there) {
    const long long row_bytes = static_cast<long long>(width_) * kBytes;
    const bool is_left = is_there && first_column_ > 0 && first_column_ <= width_;
    const bool is_right = is_there && first_column_ + 4 * kFours < width_;
#pragma unroll
    for (int i = 0; i < S::kInputRows; ++i) {
      const bool is_row = static_cast<unsigned>(first_row_ + i) < static_cast<unsigned>(height_);
      const unsigned long long from = pixels_ + i * row_bytes;
      Row& to = rows_[i];
      to.left = to.right = 0;
      Raw<T>::load_one(is_row && is_left, from - kBytes, to.left);
#pragma unroll
      for (int k = 0; k < kFours; ++k) {
        // The width is a multiple of four.
        const bool is_wanted = is_row && is_there && first_column_ + 4 * k < width_;
        if constexpr (kTogether) {
          to.fours[k] = {};
          load_global_if(is_wanted, from + 4 * k * kBytes, to.fours[k]);
        } else {
          unsigned words[4] = {};
#pragma unroll
          for (int j = 0; j < 4; ++j) Raw<T>::load_one(is_wanted, from + (4 * k + j) * kBytes, words[j]);
          to.fours[k] = Raw<T>::joined(words);
        }
      }
      if constexpr (kRight == 1) {
        Raw<T>::load_one(is_row && is_right, from + 4 * kFours * kBytes, to.right);
      }
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
