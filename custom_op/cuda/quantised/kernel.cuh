#pragma once

// The kernels of the algorithm `quantised`; see quantised.cc.

#include "cuda/primitives/dependent_launch.cuh"
#include "cuda/primitives/dp4a.cuh"
#include "cuda/primitives/fast_divisor.cuh"
#include "cuda/primitives/global_memory.cuh"
#include "cuda/primitives/naive_quantised_conv.cuh"
#include "cuda/primitives/requantise.cuh"
#include "cuda/primitives/shared_memory_at.cuh"
#include "cuda/quantised/arguments.h"

namespace convswap::quantised {

// The zero point of x in all four bytes.
template <typename X>
__device__ inline unsigned zero_point_word(const Arguments<X>& a) {
  return (a.conv.quantization.x_zero_point & 0xff) * 0x01010101u;
}

// The bias of a filter, less the zero point times its weights.
template <typename X>
__device__ inline int first_sum(const Arguments<X>& a, int filter, int prepared_filter) {
  return (a.conv.b == nullptr ? 0 : a.conv.b[filter]) + a.corrections[prepared_filter];
}

// A block's tile of outputs.
struct Tile {
  int filter_block, group;
  int image, depth, row, column;  // the first output

  template <typename X>
  __device__ explicit Tile(const Arguments<X>& a) {
    const Dense& d = a.dense;
    int tile = static_cast<int>(blockIdx.x);
    filter_block = div_mod(tile, d.filter_blocks);
    column = div_mod(tile, d.column_tiles) * static_cast<int>(d.tile_columns.divisor);
    row = div_mod(tile, d.row_tiles) * d.tile_rows;
    depth = div_mod(tile, d.output_depth);
    image = tile;
    group = static_cast<int>(d.blocks_per_group.quotient_of_any(filter_block));
  }
};

// Up to four channels of a pixel, with the zero point for those that do not exist.
template <typename X>
__device__ inline unsigned load_word(const Arguments<X>& a, const X* pixel, int channels_left) {
  if (a.dense.has_x_words) return *reinterpret_cast<const unsigned*>(pixel);
  unsigned word = zero_point_word(a);
#pragma unroll
  for (int c = 0; c < kWordChannels; ++c) {
    if (c >= channels_left) continue;
    const unsigned code = static_cast<UInt8>(pixel[c * a.conv.x_strides.channel]);
    word = (word & ~(0xffu << 8 * c)) | code << 8 * c;
  }
  return word;
}

// Stages `count` words of channels, from `first_word` on, of the pixels that the tile reads at a depth:
// (words, rows, columns).
template <typename X>
__device__ inline void stage_pixels(const Arguments<X>& a, const Tile& tile, int depth, int first_word,
                                    FastDivisor count) {
  const Dense& d = a.dense;
  const Sizes& sizes = a.sizes;
  unsigned* const staged = shared_memory_at(d.x_words);
  const int channels = static_cast<int>(a.conv.conv.channels_per_group);
  const int first_row = tile.row * sizes.stride[1] - sizes.pad[1];
  const int first_column = tile.column * sizes.stride[2] - sizes.pad[2];
  const int columns = static_cast<int>(d.staged_columns.divisor),
            rows = static_cast<int>(d.staged_rows.divisor);
  const int words = static_cast<int>(count.divisor);
  const bool is_nhwc = a.conv.x_strides.channel == 1;
  const X* const image = static_cast<const X*>(a.conv.x) + tile.image * a.conv.x_strides.image;
  for (int i = static_cast<int>(threadIdx.x); i < words * rows * columns; i += static_cast<int>(blockDim.x)) {
    // Neighbouring threads read neighbouring codes.
    int rest = i, word = 0;
    if (is_nhwc) word = div_mod(rest, count);
    const int column = div_mod(rest, d.staged_columns), row = div_mod(rest, d.staged_rows);
    if (!is_nhwc) word = rest;
    const int h = first_row + row, v = first_column + column;
    unsigned codes = zero_point_word(a);
    if (is_inside(depth, sizes.input[0]) && is_inside(h, sizes.input[1]) && is_inside(v, sizes.input[2])) {
      const int channel = (first_word + word) * kWordChannels;
      const long long position = (static_cast<long long>(depth) * sizes.input[1] + h) * sizes.input[2] + v;
      codes =
          load_word(a,
                    image + position * a.conv.x_strides.position +
                        (static_cast<long long>(tile.group) * channels + channel) * a.conv.x_strides.channel,
                    channels - channel);
    }
    staged[(word * rows + row) * columns + column] = codes;
  }
}

// Stages the weights of the tile's filters, of a depth tap and some words of channels.
template <typename X>
__device__ inline void stage_weights(const Arguments<X>& a, const Tile& tile, int depth_tap, int first_word,
                                     int words) {
  const Dense& d = a.dense;
  const int word_weights = a.taps * d.block_filters;
  const uint4* const from = reinterpret_cast<const uint4*>(
      a.prepared_weights +
      static_cast<long long>((tile.filter_block * a.sizes.filter[0] + depth_tap) * d.words + first_word) *
          word_weights);
  uint4* const staged = reinterpret_cast<uint4*>(shared_memory_at(d.w_words));
  for (int i = static_cast<int>(threadIdx.x); i < words * word_weights / 4;
       i += static_cast<int>(blockDim.x)) {
    staged[i] = from[i];
  }
}

// Adds the products of the staged words. `pixels` has each position's first pixel in the staged input.
template <typename X, int kFilters>
__device__ inline void add_products(const Arguments<X>& a, int words, const unsigned* weights,
                                    const int (&pixels)[kPositions], int (&sums)[kPositions][kFilters]) {
  const Dense& d = a.dense;
  const unsigned* const staged = shared_memory_at(d.x_words);
  const int columns = static_cast<int>(d.staged_columns.divisor),
            rows = static_cast<int>(d.staged_rows.divisor);
#pragma unroll 1
  for (int word = 0; word < words; ++word) {
#pragma unroll 1
    for (int r = 0; r < a.sizes.filter[1]; ++r) {
      const unsigned* taps = staged + (word * rows + r * a.sizes.dilation[1]) * columns;
#pragma unroll 1
      for (int s = 0; s < a.sizes.filter[2]; ++s, taps += a.sizes.dilation[2], weights += d.block_filters) {
        unsigned w[kFilters];
#pragma unroll
        for (int f = 0; f < kFilters; f += 4) {
          const uint4 four = *reinterpret_cast<const uint4*>(weights + f);
          w[f] = four.x, w[f + 1] = four.y, w[f + 2] = four.z, w[f + 3] = four.w;
        }
#pragma unroll
        for (int i = 0; i < kPositions; ++i) {
          const unsigned x = taps[pixels[i]];
#pragma unroll
          for (int f = 0; f < kFilters; ++f) sums[i][f] = dp4a<X>(x, w[f], sums[i][f]);
        }
      }
    }
  }
}

// Stores the sums of a thread's positions and filters. `first` is the thread's first position in the tile,
// which is followed by every `step`-th.
template <bool kIsPlain, typename X, int kFilters>
__device__ inline void store_tile(const Arguments<X>& a, const Tile& tile, int first, int step, int filter,
                                  int filters_left, const int (&sums)[kPositions][kFilters]) {
  const NaiveConv& conv = a.conv.conv;
  const FilterScales<kFilters> scales(a.conv, filter, filters_left);
#pragma unroll
  for (int i = 0; i < kPositions; ++i) {
    int row = first + i * step;
    const int column = tile.column + div_mod(row, a.dense.tile_columns);
    if (row >= a.dense.tile_rows || tile.row + row >= conv.output[1] || column >= conv.output[2]) continue;
    const long long position = (tile.depth * conv.output[1] + tile.row + row) * conv.output[2] + column;
    store_results<kIsPlain, X>(a.conv, a.requantisation, scales,
                               ResultPlace{tile.image, position, filter, filters_left}, sums[i]);
  }
}

// Computes tiles of a row, a column or an image: kPositions positions and kFilters filters a thread.
template <typename X, int kFilters>
__global__ void __launch_bounds__(kThreads, 2) dense(const __grid_constant__ Arguments<X> a) {
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  const Dense& d = a.dense;
  const Tile tile(a);
  int position = static_cast<int>(threadIdx.x);
  const int filter_lane = div_mod(position, d.filter_lanes);
  const int position_step = static_cast<int>(d.filter_lanes.quotient(blockDim.x));
  const int filters_per_group = static_cast<int>(a.conv.conv.filters_per_group);
  const int in_group =
      (tile.filter_block - tile.group * static_cast<int>(d.blocks_per_group.divisor)) * d.block_filters +
      filter_lane * kFilters;
  const int filter = tile.group * filters_per_group + in_group, filters_left = filters_per_group - in_group;
  int pixels[kPositions];
#pragma unroll
  for (int i = 0; i < kPositions; ++i) {
    int row = position + i * position_step;
    const int column = div_mod(row, d.tile_columns);
    // Positions beyond the tile compute the first one again.
    pixels[i] = row < d.tile_rows ? row * a.sizes.stride[1] * static_cast<int>(d.staged_columns.divisor) +
                                        column * a.sizes.stride[2]
                                  : 0;
  }
  int sums[kPositions][kFilters];
#pragma unroll
  for (int f = 0; f < kFilters; ++f) {
    const int sum =
        f < filters_left
            ? first_sum(a, filter + f, tile.filter_block * d.block_filters + filter_lane * kFilters + f)
            : 0;
#pragma unroll
    for (int i = 0; i < kPositions; ++i) sums[i][f] = sum;
  }
#pragma unroll 1
  for (int t = 0; t < a.sizes.filter[0]; ++t) {
    const int depth = tile.depth * a.sizes.stride[0] + t * a.sizes.dilation[0] - a.sizes.pad[0];
#pragma unroll 1
    for (int first_word = 0; first_word < d.words; first_word += d.stage_words) {
      const FastDivisor count = first_word + d.stage_words > d.words ? d.last_words : d.staged_words;
      if (t + first_word > 0) __syncthreads();  // all have read the previous stage
      stage_pixels(a, tile, depth, first_word, count);
      stage_weights(a, tile, t, first_word, static_cast<int>(count.divisor));
      __syncthreads();
      add_products<X, kFilters>(a, static_cast<int>(count.divisor),
                                shared_memory_at(d.w_words) + filter_lane * kFilters, pixels, sums);
    }
  }
  if (filters_left <= 0) return;
  if (a.requantisation.is_plain) {
    store_tile<true, X>(a, tile, position, position_step, filter, filters_left, sums);
  } else {
    store_tile<false, X>(a, tile, position, position_step, filter, filters_left, sums);
  }
}

// Writes the weights of `dense`; see Arguments.
template <typename X>
__global__ void prepare_dense(const __grid_constant__ Arguments<X> a) {
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  const Dense& d = a.dense;
  const int channels = static_cast<int>(a.conv.conv.channels_per_group);
  const int filters_per_group = static_cast<int>(a.conv.conv.filters_per_group);
  const int filter_weights = channels * a.sizes.filter[0] * a.taps;
  // The first weight of a filter of a block, or null.
  const auto weights_of = [&](int filter_block, int in_block) -> const Int8* {
    const int group = static_cast<int>(d.blocks_per_group.quotient_of_any(filter_block));
    const int in_group =
        (filter_block - group * static_cast<int>(d.blocks_per_group.divisor)) * d.block_filters + in_block;
    if (in_group >= filters_per_group) return nullptr;
    return a.conv.w + static_cast<long long>(group * filters_per_group + in_group) * filter_weights;
  };
  const long long threads = static_cast<long long>(gridDim.x) * kPrepareThreads;
  const long long thread = blockIdx.x * static_cast<long long>(kPrepareThreads) + threadIdx.x;
  for (long long i = thread; i < a.prepared_words; i += threads) {
    long long rest = i / d.block_filters;
    const int in_block = static_cast<int>(i - rest * d.block_filters);
    const int tap = static_cast<int>(rest % a.taps);
    rest /= a.taps;
    const int channel = static_cast<int>(rest % d.words) * kWordChannels;
    rest /= d.words;
    const int t = static_cast<int>(rest % a.sizes.filter[0]);
    const Int8* const weights = weights_of(static_cast<int>(rest / a.sizes.filter[0]), in_block);
    unsigned word = 0;
    for (int c = 0; weights != nullptr && c < kWordChannels && channel + c < channels; ++c) {
      const Int8 weight = weights[((channel + c) * a.sizes.filter[0] + t) * a.taps + tap];
      word |= static_cast<unsigned>(static_cast<UInt8>(weight)) << 8 * c;
    }
    a.prepared_weights[i] = word;
  }
  for (long long i = thread; i < a.prepared_filters; i += threads) {
    const int filter_block = static_cast<int>(i / d.block_filters);
    const Int8* const weights =
        weights_of(filter_block, static_cast<int>(i - filter_block * d.block_filters));
    int sum = 0;
    for (int j = 0; weights != nullptr && j < filter_weights; ++j) sum += weights[j];
    a.corrections[i] = -a.conv.quantization.x_zero_point * sum;
  }
}

// A word of weights with those of one channel.
__device__ inline unsigned channel_alone(unsigned word, int channel) { return word & 0xffu << 8 * channel; }

// Adds a filter row of kWidth taps to the sums. Each pixel is loaded once for all outputs that it contributes
// to. `pixels` is the address of the first tap's pixel of the first output, `column` its column; a row
// outside the input has the zero point.
template <typename X, int kWidth, int kStride, int kOutputs>
__device__ inline void add_row(const Arguments<X>& a, unsigned long long pixels, bool is_row_inside,
                               int column, const unsigned* weights, int (&sums)[kOutputs][kWordChannels]) {
  constexpr int kPixels = (kOutputs - 1) * kStride + kWidth;
  const int words = static_cast<int>(a.depthwise.words.divisor);
  unsigned codes[kPixels], w[kWidth];
#pragma unroll
  for (int i = 0; i < kPixels; ++i) {
    codes[i] = zero_point_word(a);
    load_global_if(is_row_inside && is_inside(column + i, a.sizes.input[2]),
                   pixels + static_cast<long long>(i) * words * 4, codes[i]);
  }
#pragma unroll
  for (int s = 0; s < kWidth; ++s) w[s] = weights[s * words];
#pragma unroll
  for (int s = 0; s < kWidth; ++s) {
#pragma unroll
    for (int c = 0; c < kWordChannels; ++c) {
      const unsigned weight = channel_alone(w[s], c);
#pragma unroll
      for (int q = 0; q < kOutputs; ++q) sums[q][c] = dp4a<X>(codes[q * kStride + s], weight, sums[q][c]);
    }
  }
}

// add_row for a filter row of any width, stride and dilation: each output loads its own pixels.
template <typename X, int kOutputs>
__device__ inline void add_row_of_any_width(const Arguments<X>& a, unsigned long long pixels,
                                            bool is_row_inside, int column, const unsigned* weights,
                                            int (&sums)[kOutputs][kWordChannels]) {
  const int words = static_cast<int>(a.depthwise.words.divisor);
#pragma unroll 1
  for (int s = 0; s < a.sizes.filter[2]; ++s, weights += words) {
    unsigned codes[kOutputs];
#pragma unroll
    for (int q = 0; q < kOutputs; ++q) {
      const int i = s * a.sizes.dilation[2] + q * a.sizes.stride[2];
      codes[q] = zero_point_word(a);
      load_global_if(is_row_inside && is_inside(column + i, a.sizes.input[2]),
                     pixels + static_cast<long long>(i) * words * 4, codes[q]);
    }
    const unsigned w = *weights;
#pragma unroll
    for (int c = 0; c < kWordChannels; ++c) {
      const unsigned weight = channel_alone(w, c);
#pragma unroll
      for (int q = 0; q < kOutputs; ++q) sums[q][c] = dp4a<X>(codes[q], weight, sums[q][c]);
    }
  }
}

// Stores a thread's strip. `first` is the first filter, at the image's first position.
template <bool kIsPlain, typename X, int kOutputs>
__device__ inline void store_strip(const Arguments<X>& a, ResultPlace first, int depth, int row, int column,
                                   const int (&sums)[kOutputs][kWordChannels]) {
  const FilterScales<kWordChannels> scales(a.conv, first.filter, kWordChannels);
  const long long line = (depth * static_cast<long long>(a.depthwise.output_height.divisor) + row);
#pragma unroll
  for (int q = 0; q < kOutputs; ++q) {
    if (column + q >= a.depthwise.output_width) break;
    first.position = line * a.depthwise.output_width + column + q;
    store_results<kIsPlain, X>(a.conv, a.requantisation, scales, first, sums[q]);
  }
}

// Computes strips of kOutputs outputs of a row, for a word of channels a thread. kWidth and kStride: those of
// the filter along a row, or 0 for any.
template <typename X, int kWidth, int kStride, int kOutputs>
__global__ void __launch_bounds__(kThreads) depthwise(const __grid_constant__ Arguments<X> a) {
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  const Depthwise& d = a.depthwise;
  const Sizes& sizes = a.sizes;
  int index = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  const int word = div_mod(index, d.words);
  const int row_of_band = index % kBandRows;
  index /= kBandRows;
  const int column = div_mod(index, d.strips) * kOutputs;
  const int row = index * kBandRows + row_of_band;
  if (row >= d.rows) return;
  const int filter = word * kWordChannels, words = static_cast<int>(d.words.divisor);
  int sums[kOutputs][kWordChannels];
#pragma unroll
  for (int c = 0; c < kWordChannels; ++c) {
    const int sum = first_sum(a, filter + c, filter + c);
#pragma unroll
    for (int q = 0; q < kOutputs; ++q) sums[q][c] = sum;
  }
  int image = row;
  const int p = div_mod(image, d.output_height), o = div_mod(image, d.output_depth);
  const int first_column = column * sizes.stride[2] - sizes.pad[2];
  const unsigned long long x = global_address(static_cast<const X*>(a.conv.x) + filter);
  const unsigned* weights = a.prepared_weights + word;
#pragma unroll 1
  for (int t = 0; t < sizes.filter[0]; ++t) {
    const int depth = o * sizes.stride[0] + t * sizes.dilation[0] - sizes.pad[0];
#pragma unroll 1
    for (int r = 0; r < sizes.filter[1]; ++r, weights += sizes.filter[2] * words) {
      const int h = p * sizes.stride[1] + r * sizes.dilation[1] - sizes.pad[1];
      const bool is_row_inside = is_inside(depth, sizes.input[0]) && is_inside(h, sizes.input[1]);
      const long long line = (static_cast<long long>(image) * sizes.input[0] + depth) * sizes.input[1] + h;
      const unsigned long long pixels = x + (line * sizes.input[2] + first_column) * words * kWordChannels;
      if constexpr (kWidth > 0) {
        add_row<X, kWidth, kStride, kOutputs>(a, pixels, is_row_inside, first_column, weights, sums);
      } else {
        add_row_of_any_width<X, kOutputs>(a, pixels, is_row_inside, first_column, weights, sums);
      }
    }
  }
  if (a.requantisation.is_plain) {
    store_strip<true, X>(a, ResultPlace{image, 0, filter, kWordChannels}, o, p, column, sums);
  } else {
    store_strip<false, X>(a, ResultPlace{image, 0, filter, kWordChannels}, o, p, column, sums);
  }
}

// Writes the weights of `depthwise`; see Arguments.
template <typename X>
__global__ void prepare_depthwise(const __grid_constant__ Arguments<X> a) {
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  const int words = static_cast<int>(a.depthwise.words.divisor), taps = a.taps * a.sizes.filter[0];
  const long long threads = static_cast<long long>(gridDim.x) * kPrepareThreads;
  const long long thread = blockIdx.x * static_cast<long long>(kPrepareThreads) + threadIdx.x;
  for (long long i = thread; i < a.prepared_words; i += threads) {
    const long long tap = i / words, first_filter = (i - tap * words) * kWordChannels;
    unsigned word = 0;
    for (int c = 0; c < kWordChannels; ++c) {
      word |= static_cast<unsigned>(static_cast<UInt8>(a.conv.w[(first_filter + c) * taps + tap])) << 8 * c;
    }
    a.prepared_weights[i] = word;
  }
  for (long long i = thread; i < a.prepared_filters; i += threads) {
    int sum = 0;
    for (int tap = 0; tap < taps; ++tap) sum += a.conv.w[i * taps + tap];
    a.corrections[i] = -a.conv.quantization.x_zero_point * sum;
  }
}

// One output element a thread, of any problem.
template <typename X>
__global__ void __launch_bounds__(kThreads) kernel(const __grid_constant__ Arguments<X> problem) {
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  const long long threads = static_cast<long long>(gridDim.x) * kThreads;
  for (long long i = blockIdx.x * static_cast<long long>(kThreads) + threadIdx.x; i < problem.outputs;
       i += threads) {
    naive_quantised_output<X>(problem.conv, i);
  }
}

}  // namespace convswap::quantised
