#pragma once

// The kernels of channels_last_depthwise; see channels_last_depthwise.cc.

#include "conv/small_floats.h"  // the element types of the instances' names
#include "cuda/channels_last_depthwise/arguments.h"
#include "cuda/epilogue/activations.cuh"
#include "cuda/primitives/dependent_launch.cuh"
#include "cuda/primitives/fast_divisor.cuh"
#include "cuda/primitives/global_memory.cuh"
#include "cuda/primitives/small_float_pairs.cuh"

namespace convswap::channels_last_depthwise {

// Adjacent channels of one load or store, and their conversion from and to float32.
template <typename T, int kChannels>
struct ChannelVector;

template <>
struct ChannelVector<float, 1> {
  using Words = unsigned;
  static __device__ void unpack(unsigned word, float (&channels)[1]) { channels[0] = __uint_as_float(word); }
  static __device__ unsigned pack(const float* channels) { return __float_as_uint(channels[0]); }
};
template <>
struct ChannelVector<float, 4> {
  using Words = uint4;
  static __device__ void unpack(uint4 words, float (&channels)[4]) {
    channels[0] = __uint_as_float(words.x), channels[1] = __uint_as_float(words.y);
    channels[2] = __uint_as_float(words.z), channels[3] = __uint_as_float(words.w);
  }
  static __device__ uint4 pack(const float* channels) {
    return make_uint4(__float_as_uint(channels[0]), __float_as_uint(channels[1]),
                      __float_as_uint(channels[2]), __float_as_uint(channels[3]));
  }
};
template <typename Small>
struct ChannelVector<Small, 1> {
  using Words = unsigned short;
  static __device__ void unpack(unsigned short word, float (&channels)[1]) {
    channels[0] = unpack_low<Small>(word);
  }
  static __device__ unsigned short pack(const float* channels) { return Small(channels[0]).bits; }
};
template <typename Small>
struct ChannelVector<Small, 8> {
  using Words = uint4;
  static __device__ void unpack(uint4 words, float (&channels)[8]) {
    const unsigned pairs[] = {words.x, words.y, words.z, words.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      channels[2 * i] = unpack_low<Small>(pairs[i]), channels[2 * i + 1] = unpack_high<Small>(pairs[i]);
    }
  }
  static __device__ unsigned pair(const float* channels) {
    return Small(channels[0]).bits | static_cast<unsigned>(Small(channels[1]).bits) << 16;
  }
  static __device__ uint4 pack(const float* channels) {
    return make_uint4(pair(channels), pair(channels + 2), pair(channels + 4), pair(channels + 6));
  }
};

// A thread's strip of outputs: some columns of a row of y, for the filters of a vector.
template <int kChannels, int kOutputs>
struct Strip {
  int filter;  // first of the vector
  int column;  // first of the strip
  int row;     // of y, counted over all images and depths

  template <typename T>
  __device__ explicit Strip(const Arguments<T>& a) {
    int in_tile = static_cast<int>(threadIdx.x), tile = static_cast<int>(blockIdx.x);
    const int vector = div_mod(in_tile, a.vectors_per_tile);
    const int strip = div_mod(in_tile, a.strips_per_tile);
    filter =
        (div_mod(tile, a.vector_tiles) * static_cast<int>(a.vectors_per_tile.divisor) + vector) * kChannels;
    column = (div_mod(tile, a.strip_tiles) * static_cast<int>(a.strips_per_tile.divisor) + strip) * kOutputs;
    row = tile * a.band_rows * a.bands + in_tile;
  }
};

// Adds a filter row of kWidth taps to the accumulators. Each pixel is loaded once for all outputs that it
// contributes to. `pixels` and `weights` are the addresses of the first tap's operands.
template <int kWidth, int kStride, int kOutputs, int kChannels, typename T>
__device__ inline void add_row(const Arguments<T>& a, unsigned long long pixels, int first_column,
                               unsigned long long weights, float (&accumulators)[kOutputs * kChannels]) {
  using Vector = ChannelVector<T, kChannels>;
  constexpr int kPixels = (kOutputs - 1) * kStride + kWidth;
  const long long pixel_bytes = static_cast<long long>(a.channels) * int(sizeof(T));
  const long long weight_bytes = static_cast<long long>(a.weight_pitch) * int(sizeof(T));
  typename Vector::Words pixel_words[kPixels], weight_words[kWidth];
#pragma unroll
  for (int i = 0; i < kPixels; ++i) {
    pixel_words[i] = typename Vector::Words{};
    load_global_if(is_inside(first_column + i, a.input_width), pixels + i * pixel_bytes, pixel_words[i]);
  }
#pragma unroll
  for (int s = 0; s < kWidth; ++s) {
    weight_words[s] = typename Vector::Words{};
    load_global_if(true, weights + s * weight_bytes, weight_words[s]);
  }
  float taps[kWidth][kChannels];
#pragma unroll
  for (int s = 0; s < kWidth; ++s) Vector::unpack(weight_words[s], taps[s]);
#pragma unroll
  for (int i = 0; i < kPixels; ++i) {
    float pixel[kChannels];
    Vector::unpack(pixel_words[i], pixel);
#pragma unroll
    for (int q = 0; q < kOutputs; ++q) {
      const int s = i - q * kStride;
      if (s < 0 || s >= kWidth) continue;
#pragma unroll
      for (int c = 0; c < kChannels; ++c) accumulators[q * kChannels + c] += pixel[c] * taps[s][c];
    }
  }
}

// add_row for a filter row of any width, stride and dilation: each output loads its own pixels.
template <int kOutputs, int kChannels, typename T>
__device__ inline void add_row_of_any_width(const Arguments<T>& a, unsigned long long pixels,
                                            int first_column, unsigned long long weights,
                                            float (&accumulators)[kOutputs * kChannels]) {
  using Vector = ChannelVector<T, kChannels>;
  const long long pixel_bytes = static_cast<long long>(a.channels) * int(sizeof(T));
  const long long weight_bytes = static_cast<long long>(a.weight_pitch) * int(sizeof(T));
#pragma unroll 2
  for (int s = 0; s < a.filter_width; ++s, weights += weight_bytes) {
    typename Vector::Words pixel_words[kOutputs], weight_words{};
    load_global_if(true, weights, weight_words);
#pragma unroll
    for (int q = 0; q < kOutputs; ++q) {
      const int column = s * a.dilation_width + q * a.stride_width;
      pixel_words[q] = typename Vector::Words{};
      load_global_if(is_inside(first_column + column, a.input_width), pixels + column * pixel_bytes,
                     pixel_words[q]);
    }
    float tap[kChannels];
    Vector::unpack(weight_words, tap);
#pragma unroll
    for (int q = 0; q < kOutputs; ++q) {
      float pixel[kChannels];
      Vector::unpack(pixel_words[q], pixel);
#pragma unroll
      for (int c = 0; c < kChannels; ++c) accumulators[q * kChannels + c] += pixel[c] * tap[c];
    }
  }
}

// Adds the residual, applies the activation, and stores the strip.
template <int kOutputs, int kChannels, typename T>
__device__ inline void store_results(const Arguments<T>& a, const Strip<kChannels, kOutputs>& strip,
                                     float (&accumulators)[kOutputs * kChannels]) {
  using Vector = ChannelVector<T, kChannels>;
  const long long first =
      (static_cast<long long>(strip.row) * a.output_width + strip.column) * a.filters + strip.filter;
  const long long pixel_bytes = static_cast<long long>(a.filters) * int(sizeof(T));
  if (a.z != nullptr) {
    const unsigned long long residual = global_address(a.z + first);
    typename Vector::Words words[kOutputs];
#pragma unroll
    for (int q = 0; q < kOutputs; ++q) {
      words[q] = typename Vector::Words{};
      load_global_if(strip.column + q < a.output_width, residual + q * pixel_bytes, words[q]);
    }
#pragma unroll
    for (int q = 0; q < kOutputs; ++q) {
      float values[kChannels];
      Vector::unpack(words[q], values);
#pragma unroll
      for (int c = 0; c < kChannels; ++c) accumulators[q * kChannels + c] += values[c];
    }
  }
  apply_activation(a.epilogue, accumulators);
  const unsigned long long y = global_address(a.y + first);
#pragma unroll
  for (int q = 0; q < kOutputs; ++q) {
    store_global_if(strip.column + q < a.output_width, y + q * pixel_bytes,
                    Vector::pack(accumulators + q * kChannels));
  }
}

// The least number of blocks that fit into the registers of a multiprocessor.
constexpr int min_blocks(int width, int outputs) { return width == 7 && outputs == 8 ? 1 : 2; }

// Adds all taps of a strip to the accumulators.
template <int kWidth, int kStride, int kOutputs, int kChannels, typename T>
__device__ inline void add_taps(const Arguments<T>& a, const Strip<kChannels, kOutputs>& strip, int channel,
                                float (&accumulators)[kOutputs * kChannels]) {
  int image = strip.row;
  const int first_row = div_mod(image, a.output_height) * a.stride_height - a.pad_height;
  const int first_depth = div_mod(image, a.output_depth) * a.stride_depth - a.pad_depth;
  const int first_column = strip.column * a.stride_width - a.pad_width;
  const unsigned long long x = global_address(a.x + channel);
  unsigned long long weights = global_address(a.prepared_weights + strip.filter);
  const long long row_weights = static_cast<long long>(a.filter_width) * a.weight_pitch * int(sizeof(T));
#pragma unroll 1
  for (int t = 0; t < a.filter_depth; ++t) {
    const int depth = first_depth + t * a.dilation_depth;
#pragma unroll 1
    for (int r = 0; r < a.filter_height; ++r, weights += row_weights) {
      const int row = first_row + r * a.dilation_height;
      if (!is_inside(depth, a.input_depth) || !is_inside(row, a.input_height)) continue;
      const long long line = static_cast<long long>(image * a.input_depth + depth) * a.input_height + row;
      const unsigned long long pixels =
          x + (line * a.input_width + first_column) * a.channels * int(sizeof(T));
      if constexpr (kWidth > 0) {
        add_row<kWidth, kStride, kOutputs, kChannels>(a, pixels, first_column, weights, accumulators);
      } else {
        add_row_of_any_width<kOutputs, kChannels>(a, pixels, first_column, weights, accumulators);
      }
    }
  }
}

// Template parameters as in Instance (family.h).
template <typename T, bool kHasVectors, int kWidth, int kStride, int kOutputs>
__global__ void __launch_bounds__(kMaxThreads, min_blocks(kWidth, kOutputs))
    kernel(const __grid_constant__ Arguments<T> a) {
  constexpr int kChannels = kHasVectors ? kVectorBytes / int(sizeof(T)) : 1;
  Strip<kChannels, kOutputs> strip(a);
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  if (strip.filter >= a.filters || strip.column >= a.output_width) return;
  const int channel =
      kHasVectors ? strip.filter : static_cast<int>(a.filters_per_channel.quotient_of_any(strip.filter));
  float bias[kChannels];
#pragma unroll
  for (int c = 0; c < kChannels; ++c) {
    bias[c] = a.b == nullptr ? 0.0f : static_cast<float>(a.b[strip.filter + c]);
  }
#pragma unroll 1
  for (int band = 0; band < a.bands && strip.row < a.rows; ++band, strip.row += a.band_rows) {
    float accumulators[kOutputs * kChannels];
#pragma unroll
    for (int i = 0; i < kOutputs * kChannels; ++i) accumulators[i] = bias[i % kChannels];
    add_taps<kWidth, kStride, kOutputs, kChannels>(a, strip, channel, accumulators);
    store_results<kOutputs, kChannels>(a, strip, accumulators);
  }
}

// Transposes the weights (filters, taps) to (taps, filters), with zeros for the filters of the last vector
// that do not exist.
template <typename T>
__global__ void prepare(const __grid_constant__ Arguments<T> a) {
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  const int i = static_cast<int>(blockIdx.x) * kPrepareThreads + static_cast<int>(threadIdx.x);
  const int tap = i / a.weight_pitch, filter = i - tap * a.weight_pitch;
  if (tap >= a.taps) return;
  a.prepared_weights[i] =
      filter < a.filters ? a.w[static_cast<long long>(filter) * a.taps + tap] : static_cast<T>(0.0f);
}

}  // namespace convswap::channels_last_depthwise
