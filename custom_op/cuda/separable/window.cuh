#pragma once

// A thread's part of the depthwise convolution: loads the receptive field of its outputs in one
// channel and computes the depthwise outputs.

#include "conv/small_floats.h"
#include "cuda/epilogue/activations.cuh"
#include "cuda/primitives/global_memory.cuh"
#include "cuda/primitives/mma.cuh"
#include "cuda/primitives/nan_min_max.cuh"
#include "cuda/primitives/small_float_pairs.cuh"
#include "cuda/separable/arguments.h"

namespace convswap::separable {

// Raw bits of elements as loaded: one element in a word, or four adjacent elements in a vector. Conversion is
// deferred until the multiplication, because any use would wait for the load.
template <typename T>
struct RawBits {
  using Vector = uint2;
  static __device__ void load_one(bool condition, unsigned long long address, unsigned& to) {
    load_global_16_if(condition, address, to);
  }
  static __device__ Vector pack(const unsigned (&words)[4]) {
    return make_uint2(words[0] | words[1] << 16, words[2] | words[3] << 16);
  }
  static __device__ float to_float(unsigned word) { return unpack_low<T>(word); }
  static __device__ float to_float(const Vector& four, int i) {
    const unsigned pair = i < 2 ? four.x : four.y;
    return i % 2 == 0 ? unpack_low<T>(pair) : unpack_high<T>(pair);
  }
  // A depthwise output as smem holds it. 16-bit types round later, when the mma fragment is packed.
  static __device__ float to_operand(float value) { return value; }
};
template <>
struct RawBits<float> {
  using Vector = uint4;
  static __device__ void load_one(bool condition, unsigned long long address, unsigned& to) {
    load_global_if(condition, address, to);
  }
  static __device__ Vector pack(const unsigned (&words)[4]) {
    return make_uint4(words[0], words[1], words[2], words[3]);
  }
  static __device__ float to_float(unsigned word) { return __uint_as_float(word); }
  static __device__ float to_float(const Vector& four, int i) {
    return __uint_as_float(i == 0 ? four.x : i == 1 ? four.y : i == 2 ? four.z : four.w);
  }
  static __device__ float to_operand(float value) { return round_to_tf32(value); }
};

template <typename T, typename S>
class Window {
 public:
  // `row` and `column`: the thread's first output; `channel`: its channel in the first step.
  __device__ Window(const Arguments<T>& a, int image, int row, int column, int channel)
      : channel_(channel),
        first_row_(row * S::kStride - kTaps / 2),
        first_column_(column * S::kStride),
        height_(a.input_height),
        width_(a.input_width),
        depth_(a.k_size),
        has_bias_(a.db != nullptr),
        vectorized_(a.vectorizes_pixel_loads),
        pixel_address_(global_address(a.x) +
                       ((static_cast<long long>(image) * a.k_size + channel) * height_ * width_ +
                        static_cast<long long>(first_row_) * width_ + first_column_) *
                           kBytes),
        weight_address_(global_address(a.d) + channel * (kTaps * kTaps * kBytes)),
        bias_address_(global_address(a.db) + channel * kBytes) {}

  // Starts the loads of the next step.
  __device__ void load() {
    const bool has_channel = channel_ < depth_;
    has_channel_ = has_channel;
#pragma unroll
    for (int i = 0; i < kTaps * kTaps; ++i) {
      tap_bits_[i] = 0;
      RawBits<T>::load_one(has_channel, weight_address_ + i * kBytes, tap_bits_[i]);
    }
    bias_bits_ = 0;
    RawBits<T>::load_one(has_channel && has_bias_, bias_address_, bias_bits_);
    if (vectorized_) {
      load_rows<true>(has_channel);
    } else {
      load_rows<false>(has_channel);
    }
    channel_ += kStepChannels;
    weight_address_ += kStepChannels * kTaps * kTaps * kBytes;
    bias_address_ += kStepChannels * kBytes;
    pixel_address_ += static_cast<long long>(kStepChannels) * height_ * width_ * kBytes;
  }

  // Stores the depthwise outputs of the loaded channel to `to`, in rows of kTileColumns.
  __device__ void store(const EpilogueParams& epilogue, float* to) const {
    float accumulators[S::kRows][kColumns];
    convolve(accumulators);
    // Channels past the last give zeros even if the activation maps 0 to another value.
    if (epilogue.only_clamps) {
      const float lower = has_channel_ ? epilogue.lower : 0.0f, upper = has_channel_ ? epilogue.upper : 0.0f;
#pragma unroll
      for (int i = 0; i < S::kRows; ++i) {
        const auto result = [&](int j) {
          return RawBits<T>::to_operand(min_nan(max_nan(accumulators[i][j], lower), upper));
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
    if (!has_channel_) return;
    // Not unrolled: the activations' formulas take long to compile.
#pragma unroll 1
    for (int i = 0; i < S::kRows; ++i) {
      const float4 sum = *row_of(to, i);
      float values[] = {sum.x, sum.y, sum.z, sum.w};
      activate_values<Activation::silu, Activation::hard_swish>(epilogue.epilogue, values);
      *row_of(to, i) = make_float4(RawBits<T>::to_operand(values[0]), RawBits<T>::to_operand(values[1]),
                                   RawBits<T>::to_operand(values[2]), RawBits<T>::to_operand(values[3]));
    }
  }

 private:
  static constexpr int kBytes = static_cast<int>(sizeof(T));
  static constexpr int kVectors = kColumns * S::kStride / 4;
  // Single columns to the right of the vectors; one single column lies to the left.
  static constexpr int kRight = S::kInputColumns - 1 - 4 * kVectors;
  static_assert(kRight == 0 || kRight == 1);

  struct Row {
    unsigned left, right;
    typename RawBits<T>::Vector vectors[kVectors];

    __device__ float to_float(int column) const {
      if (column == 0) return RawBits<T>::to_float(left);
      if (column > 4 * kVectors) return RawBits<T>::to_float(right);
      return RawBits<T>::to_float(vectors[(column - 1) / 4], (column - 1) % 4);
    }
  };

  static __device__ float4* row_of(float* results, int row) {
    return reinterpret_cast<float4*>(results + row * S::kTileColumns);
  }

  __device__ void convolve(float (&accumulators)[S::kRows][kColumns]) const {
    float taps[kTaps * kTaps];
#pragma unroll
    for (int i = 0; i < kTaps * kTaps; ++i) taps[i] = RawBits<T>::to_float(tap_bits_[i]);
#pragma unroll
    for (int i = 0; i < S::kRows; ++i) {
#pragma unroll
      for (int j = 0; j < kColumns; ++j) accumulators[i][j] = RawBits<T>::to_float(bias_bits_);
    }
#pragma unroll
    for (int from = 0; from < S::kInputRows; ++from) {
      float pixels[S::kInputColumns];
#pragma unroll
      for (int j = 0; j < S::kInputColumns; ++j) pixels[j] = rows_[from].to_float(j);
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

  template <bool kVectorized>
  __device__ void load_rows(bool has_channel) {
    const long long row_bytes = static_cast<long long>(width_) * kBytes;
    const bool is_left = has_channel && first_column_ > 0 && first_column_ <= width_;
    const bool is_right = has_channel && first_column_ + 4 * kVectors < width_;
#pragma unroll
    for (int i = 0; i < S::kInputRows; ++i) {
      const bool is_row = static_cast<unsigned>(first_row_ + i) < static_cast<unsigned>(height_);
      const unsigned long long from = pixel_address_ + i * row_bytes;
      Row& to = rows_[i];
      to.left = to.right = 0;
      RawBits<T>::load_one(is_row && is_left, from - kBytes, to.left);
#pragma unroll
      for (int k = 0; k < kVectors; ++k) {
        // The width is a multiple of four.
        const bool is_wanted = is_row && has_channel && first_column_ + 4 * k < width_;
        if constexpr (kVectorized) {
          to.vectors[k] = {};
          load_global_if(is_wanted, from + 4 * k * kBytes, to.vectors[k]);
        } else {
          unsigned words[4] = {};
#pragma unroll
          for (int j = 0; j < 4; ++j) RawBits<T>::load_one(is_wanted, from + (4 * k + j) * kBytes, words[j]);
          to.vectors[k] = RawBits<T>::pack(words);
        }
      }
      if constexpr (kRight == 1) {
        RawBits<T>::load_one(is_row && is_right, from + 4 * kVectors * kBytes, to.right);
      }
    }
  }

  int channel_, first_row_, first_column_, height_, width_, depth_;
  bool has_bias_, vectorized_;
  bool has_channel_ = false;  // the loaded channel exists
  unsigned long long pixel_address_, weight_address_, bias_address_;
  Row rows_[S::kInputRows];
  unsigned tap_bits_[kTaps * kTaps], bias_bits_;
};

}  // namespace convswap::separable
