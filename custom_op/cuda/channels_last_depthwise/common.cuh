#pragma once

// Parts that the kernels of channels_last_depthwise share.

#include "conv/small_floats.h"  // the element types of the instances' names
#include "cuda/channels_last_depthwise/arguments.h"
#include "cuda/epilogue/activations.cuh"
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
struct ChannelVector<Small, 2> {
  using Words = unsigned;
  static __device__ void unpack(unsigned word, float (&channels)[2]) {
    channels[0] = unpack_low<Small>(word), channels[1] = unpack_high<Small>(word);
  }
  static __device__ unsigned pack(const float* channels) {
    return Small(channels[0]).bits | static_cast<unsigned>(Small(channels[1]).bits) << 16;
  }
};
template <typename Small>
struct ChannelVector<Small, 8> {
  using Words = uint4;
  using Pair = ChannelVector<Small, 2>;
  static __device__ void unpack(uint4 words, float (&channels)[8]) {
    const unsigned pairs[] = {words.x, words.y, words.z, words.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      channels[2 * i] = unpack_low<Small>(pairs[i]), channels[2 * i + 1] = unpack_high<Small>(pairs[i]);
    }
  }
  static __device__ uint4 pack(const float* channels) {
    return make_uint4(Pair::pack(channels), Pair::pack(channels + 2), Pair::pack(channels + 4),
                      Pair::pack(channels + 6));
  }
};

// A thread's place in y: the channels of a vector, and adjacent columns of a run of rows.
template <int kChannels>
struct Place {
  int vector, strip, run;  // in the tile
  int filter;              // first of the vector
  int column;              // first of the strip
  int plane;               // an image's depth
  int first_row, rows;     // of the run in the plane; no rows if there is no such run
  bool exists;

  template <typename T>
  __device__ explicit Place(const Arguments<T>& a) {
    run = static_cast<int>(threadIdx.x);
    vector = div_mod(run, a.tile_vectors), strip = div_mod(run, a.tile_strips);
    int tile = static_cast<int>(blockIdx.x);
    filter = (div_mod(tile, a.vector_tiles) * static_cast<int>(a.tile_vectors.divisor) + vector) * kChannels;
    column = (div_mod(tile, a.strip_tiles) * static_cast<int>(a.tile_strips.divisor) + strip) * kStripColumns;
    plane = tile * a.tile_runs + run;
    const bool has_run = plane < a.runs;
    first_row = div_mod(plane, a.plane_runs) * a.run_rows;
    rows = has_run ? min(a.run_rows, a.output_height - first_row) : 0;
    exists = has_run && filter < a.filters && column < a.output_width;
  }

  // The first element of a row of the strip in y.
  template <typename T>
  __device__ long long element(const Arguments<T>& a, int row) const {
    const long long line = static_cast<long long>(plane) * a.output_height + row;
    return (line * a.output_width + column) * a.filters + filter;
  }
};

// The bias of a vector's filters.
template <int kChannels, typename T>
__device__ inline void load_bias(const Arguments<T>& a, int filter, float (&bias)[kChannels]) {
#pragma unroll
  for (int c = 0; c < kChannels; ++c) bias[c] = a.b == nullptr ? 0.0f : static_cast<float>(a.b[filter + c]);
}

// The residual of a strip: its words, which may be on their way. Without a residual they are not used.
template <typename T, int kChannels>
struct Residual {
  using Vector = ChannelVector<T, kChannels>;
  typename Vector::Words words[kStripColumns];

  // Loads the residual of a strip from element `first` on.
  __device__ void load(const Arguments<T>& a, int columns_left, long long first) {
    const unsigned long long address = global_address(a.z + first);
#pragma unroll
    for (int q = 0; q < kStripColumns; ++q) {
      words[q] = typename Vector::Words{};
      load_global_if(q < columns_left,
                     address_at(address, q, static_cast<unsigned>(a.filters) * unsigned{sizeof(T)}),
                     words[q]);
    }
  }
  __device__ void add_to(float (&accumulators)[kStripColumns * kChannels]) const {
#pragma unroll
    for (int q = 0; q < kStripColumns; ++q) {
      float values[kChannels];
      Vector::unpack(words[q], values);
#pragma unroll
      for (int c = 0; c < kChannels; ++c) accumulators[q * kChannels + c] += values[c];
    }
  }
};

// Adds the residual, applies the activation, and stores the results of a strip from element `first` of y on.
template <int kChannels, typename T>
__device__ inline void store_results(const Arguments<T>& a, int columns_left, long long first,
                                     const Residual<T, kChannels>& residual,
                                     float (&accumulators)[kStripColumns * kChannels]) {
  if (a.z != nullptr) residual.add_to(accumulators);
  if (a.has_activation) apply_activation(a.epilogue, accumulators);
  const unsigned long long y = global_address(a.y + first);
#pragma unroll
  for (int q = 0; q < kStripColumns; ++q) {
    store_global_if(q < columns_left,
                    address_at(y, q, static_cast<unsigned>(a.filters) * unsigned{sizeof(T)}),
                    ChannelVector<T, kChannels>::pack(accumulators + q * kChannels));
  }
}

// Adds the products of adjacent pixels and a filter row of kWidth taps to the sums of a strip.
template <int kWidth, int kStride, int kChannels, int kPixels>
__device__ inline void add_row(const float (&pixels)[kPixels][kChannels],
                               const float (&taps)[kWidth][kChannels],
                               float (&accumulators)[kStripColumns * kChannels]) {
  static_assert(kPixels == (kStripColumns - 1) * kStride + kWidth);
#pragma unroll
  for (int i = 0; i < kPixels; ++i) {
#pragma unroll
    for (int q = 0; q < kStripColumns; ++q) {
      const int s = i - q * kStride;
      if (s < 0 || s >= kWidth) continue;
#pragma unroll
      for (int c = 0; c < kChannels; ++c) accumulators[q * kChannels + c] += pixels[i][c] * taps[s][c];
    }
  }
}

}  // namespace convswap::channels_last_depthwise
