#pragma once

// Kernels of channels_last_depthwise for filters of any shape, and the preparation of weights; see
// channels_last_depthwise.cc.

#include "cuda/channels_last_depthwise/common.cuh"
#include "cuda/primitives/dependent_launch.cuh"

namespace convswap::channels_last_depthwise {

// Loads adjacent pixels, with zeros where there are none.
template <typename Words, int kPixels>
__device__ inline void load_pixels(unsigned long long address, long long pixel_bytes, int first_column,
                                   int input_width, Words (&pixels)[kPixels]) {
#pragma unroll
  for (int i = 0; i < kPixels; ++i) {
    pixels[i] = Words{};
    load_global_if(is_inside(first_column + i, input_width), address + i * pixel_bytes, pixels[i]);
  }
}

// Adds all taps of a filter row of any width, stride and dilation: each output loads its own pixels.
template <int kChannels, typename T>
__device__ inline void add_row_of_any_width(const Arguments<T>& a, unsigned long long pixels,
                                            int first_column, unsigned long long weights,
                                            float (&accumulators)[kStripColumns * kChannels]) {
  using Vector = ChannelVector<T, kChannels>;
  const long long pixel_bytes = static_cast<long long>(a.channels) * int(sizeof(T));
  const long long weight_bytes = static_cast<long long>(a.weight_pitch) * int(sizeof(T));
#pragma unroll 2
  for (int s = 0; s < a.filter_width; ++s, weights += weight_bytes) {
    typename Vector::Words pixel_words[kStripColumns], weight_words{};
    load_global_if(true, weights, weight_words);
#pragma unroll
    for (int q = 0; q < kStripColumns; ++q) {
      const int column = s * a.dilation_width + q * a.stride_width;
      pixel_words[q] = typename Vector::Words{};
      load_global_if(is_inside(first_column + column, a.input_width), pixels + column * pixel_bytes,
                     pixel_words[q]);
    }
    float tap[kChannels];
    Vector::unpack(weight_words, tap);
#pragma unroll
    for (int q = 0; q < kStripColumns; ++q) {
      float pixel[kChannels];
      Vector::unpack(pixel_words[q], pixel);
#pragma unroll
      for (int c = 0; c < kChannels; ++c) accumulators[q * kChannels + c] += pixel[c] * tap[c];
    }
  }
}

// Adds all taps of the strip in row `row` of the plane to the accumulators.
template <int kWidth, int kChannels, typename T>
__device__ inline void add_taps(const Arguments<T>& a, const Place<kChannels>& place, int row, int channel,
                                float (&accumulators)[kStripColumns * kChannels]) {
  using Vector = ChannelVector<T, kChannels>;
  const int first_row = row * a.stride_height - a.pad_height;
  int image = place.plane;
  const int first_depth = div_mod(image, a.output_depth) * a.stride_depth - a.pad_depth;
  const int first_column = place.column * a.stride_width - a.pad_width;
  const unsigned long long x = global_address(a.x + channel);
  unsigned long long weights = global_address(a.prepared_weights + place.filter);
  const long long weight_bytes = static_cast<long long>(a.weight_pitch) * int(sizeof(T));
  const long long pixel_bytes = static_cast<long long>(a.channels) * int(sizeof(T));
#pragma unroll 1
  for (int t = 0; t < a.filter_depth; ++t) {
    const int depth = first_depth + t * a.dilation_depth;
#pragma unroll 1
    for (int r = 0; r < a.filter_height; ++r, weights += a.filter_width * weight_bytes) {
      const int input_row = first_row + r * a.dilation_height;
      if (!is_inside(depth, a.input_depth) || !is_inside(input_row, a.input_height)) continue;
      const long long line =
          static_cast<long long>(image * a.input_depth + depth) * a.input_height + input_row;
      const unsigned long long pixels =
          x + static_cast<unsigned long long>((line * a.input_width + first_column) * pixel_bytes);
      if constexpr (kWidth > 0) {
        constexpr int kPixels = kStripColumns - 1 + kWidth;
        typename Vector::Words words[kPixels];
        load_pixels(pixels, pixel_bytes, first_column, a.input_width, words);
        float taps[kWidth][kChannels];
#pragma unroll
        for (int s = 0; s < kWidth; ++s) {
          typename Vector::Words tap{};
          load_global_if(true, weights + s * weight_bytes, tap);
          Vector::unpack(tap, taps[s]);
        }
        float unpacked[kPixels][kChannels];
#pragma unroll
        for (int i = 0; i < kPixels; ++i) Vector::unpack(words[i], unpacked[i]);
        add_row<kWidth, 1, kChannels>(unpacked, taps, accumulators);
      } else {
        add_row_of_any_width<kChannels>(a, pixels, first_column, weights, accumulators);
      }
    }
  }
}

// Filters of any shape, row by row: a filter row of kWidth taps with stride 1, or of any width with 0.
template <typename T, bool kHasVectors, int kWidth>
__global__ void __launch_bounds__(kMaxThreads, 2) row_by_row(const __grid_constant__ Arguments<T> a) {
  constexpr int kChannels = kHasVectors ? kVectorBytes / int(sizeof(T)) : 1;
  const Place<kChannels> place(a);
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  if (!place.exists) return;
  const int channel =
      kHasVectors ? place.filter : static_cast<int>(a.filters_per_channel.quotient_of_any(place.filter));
  float bias[kChannels];
  load_bias(a, place.filter, bias);
#pragma unroll 1
  for (int row = place.first_row; row < place.first_row + place.rows; ++row) {
    float accumulators[kStripColumns * kChannels];
#pragma unroll
    for (int i = 0; i < kStripColumns * kChannels; ++i) accumulators[i] = bias[i % kChannels];
    add_taps<kWidth>(a, place, row, channel, accumulators);
    const int columns_left = a.output_width - place.column;
    const long long element = place.element(a, row);
    Residual<T, kChannels> residual{};
    if (a.z != nullptr) residual.load(a, columns_left, element);
    store_results(a, columns_left, element, residual, accumulators);
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
