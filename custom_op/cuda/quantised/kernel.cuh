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
template <Results kResults, typename X, int kFilters>
__device__ inline void store_tile(const Arguments<X>& a, const Tile& tile, int first, int step, int filter,
                                  int filters_left, const FilterScales<kFilters>& scales,
                                  const int (&sums)[kPositions][kFilters]) {
  const NaiveConv& conv = a.conv.conv;
#pragma unroll
  for (int i = 0; i < kPositions; ++i) {
    int row = first + i * step;
    const int column = tile.column + div_mod(row, a.dense.tile_columns);
    if (row >= a.dense.tile_rows || tile.row + row >= conv.output[1] || column >= conv.output[2]) continue;
    const long long position = (tile.depth * conv.output[1] + tile.row + row) * conv.output[2] + column;
    store_results<kResults, X>(a.conv, a.requantisation, scales,
                               ResultPlace(a.conv, tile.image, position, filter, filters_left), sums[i]);
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
  const FilterScales<kFilters> scales(a.conv, a.requantisation, filter, filters_left);
  const auto store = [&]<Results kResults>() {
    store_tile<kResults, X>(a, tile, position, position_step, filter, filters_left, scales, sums);
  };
  call_for(scales.results(a.requantisation), store);
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

// Turns four words of four channels each into a word of each channel.
__device__ inline void transpose_bytes(unsigned (&words)[4]) {
  const unsigned low01 = __byte_perm(words[0], words[1], 0x5140),
                 high01 = __byte_perm(words[0], words[1], 0x7362);
  const unsigned low23 = __byte_perm(words[2], words[3], 0x5140),
                 high23 = __byte_perm(words[2], words[3], 0x7362);
  words[0] = __byte_perm(low01, low23, 0x5410), words[1] = __byte_perm(low01, low23, 0x7632);
  words[2] = __byte_perm(high01, high23, 0x5410), words[3] = __byte_perm(high01, high23, 0x7632);
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

// Words of channels that are loaded together.
template <int kWords>
struct Words;
template <>
struct Words<1> {
  unsigned word[1];

  __device__ void load_if(bool condition, unsigned long long address) {
    load_global_if(condition, address, word[0]);
  }
};
template <>
struct alignas(8) Words<2> {
  unsigned word[2];

  __device__ void load_if(bool condition, unsigned long long address) {
    uint2 both = make_uint2(word[0], word[1]);
    load_global_if(condition, address, both);
    word[0] = both.x, word[1] = both.y;
  }
};

// A thread's strip of outputs: adjacent columns of one or more rows, for a word of channels.
struct Strip {
  bool exists;
  int word, filter;               // the first of the thread's
  int image, depth, row, column;  // the first output

  // kRows and kOutputs: rows, and outputs of each; kWords: words of channels of a thread.
  template <int kRows, int kOutputs, int kWords, typename X>
  static __device__ Strip of_thread(const Arguments<X>& a) {
    const Depthwise& d = a.depthwise;
    Strip strip;
    int index = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
    strip.word = div_mod(index, d.thread_words) * kWords;
    strip.filter = strip.word * kWordChannels;
    const int row_of_band = index % kBandRows;
    index /= kBandRows;
    strip.column = div_mod(index, d.strips) * kOutputs;
    strip.image = index * kBandRows + row_of_band;
    strip.exists = strip.image < d.strip_rows;
    strip.row = div_mod(strip.image, d.strip_rows_of_height) * kRows;
    strip.depth = div_mod(strip.image, d.output_depth);
    return strip;
  }
};

// Stores a thread's strip.
template <Results kResults, typename X, int kRows, int kOutputs, int kChannels>
__device__ inline void store_strip(const Arguments<X>& a, const Strip& strip,
                                   const FilterScales<kChannels>& scales,
                                   const int (&sums)[kRows][kOutputs][kChannels]) {
  const Depthwise& d = a.depthwise;
#pragma unroll
  for (int p = 0; p < kRows; ++p) {
    if (strip.row + p >= d.output_height) break;
    const long long line = strip.depth * static_cast<long long>(d.output_height) + strip.row + p;
    ResultPlace place(a.conv, strip.image, line * d.output_width + strip.column, strip.filter, kChannels);
#pragma unroll
    for (int q = 0; q < kOutputs; ++q) {
      if (strip.column + q >= d.output_width) break;
      store_results<kResults, X>(a.conv, a.requantisation, scales, place, sums[p][q]);
      place.advance(a.conv);
    }
  }
}
template <typename X, int kRows, int kOutputs, int kChannels>
__device__ inline void store_strip(const Arguments<X>& a, const Strip& strip,
                                   const int (&sums)[kRows][kOutputs][kChannels]) {
  const FilterScales<kChannels> scales(a.conv, a.requantisation, strip.filter, kChannels);
  const auto store = [&]<Results kResults>() { store_strip<kResults>(a, strip, scales, sums); };
  call_for(scales.results(a.requantisation), store);
}

// Sets sums to the biases, less the zero point times the weights.
template <typename X, int kRows, int kOutputs, int kChannels>
__device__ inline void set_to_first(const Arguments<X>& a, const Strip& strip,
                                    int (&sums)[kRows][kOutputs][kChannels]) {
#pragma unroll
  for (int c = 0; c < kChannels; ++c) {
    const int sum = first_sum(a, strip.filter + c, strip.filter + c);
#pragma unroll
    for (int i = 0; i < kRows * kOutputs; ++i) sums[i / kOutputs][i % kOutputs][c] = sum;
  }
}

// Computes strips of kOutputs outputs of a row. kWidth and kStride: those of the filter along a row, or 0 for
// any.
template <typename X, int kWidth, int kStride, int kOutputs>
__global__ void __launch_bounds__(kThreads) depthwise(const __grid_constant__ Arguments<X> a) {
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  const Depthwise& d = a.depthwise;
  const Sizes& sizes = a.sizes;
  const Strip strip = Strip::of_thread<1, kOutputs, 1>(a);
  if (!strip.exists) return;
  const int words = static_cast<int>(d.words.divisor);
  int sums[1][kOutputs][kWordChannels];
  set_to_first(a, strip, sums);
  const int first_column = strip.column * sizes.stride[2] - sizes.pad[2];
  const unsigned long long x = global_address(static_cast<const X*>(a.conv.x) + strip.filter);
  const unsigned* weights = a.prepared_weights + strip.word;
#pragma unroll 1
  for (int t = 0; t < sizes.filter[0]; ++t) {
    const int depth = strip.depth * sizes.stride[0] + t * sizes.dilation[0] - sizes.pad[0];
#pragma unroll 1
    for (int r = 0; r < sizes.filter[1]; ++r, weights += sizes.filter[2] * words) {
      const int h = strip.row * sizes.stride[1] + r * sizes.dilation[1] - sizes.pad[1];
      const bool is_row_inside = is_inside(depth, sizes.input[0]) && is_inside(h, sizes.input[1]);
      const long long line =
          (static_cast<long long>(strip.image) * sizes.input[0] + depth) * sizes.input[1] + h;
      const unsigned long long pixels = x + (line * sizes.input[2] + first_column) * words * kWordChannels;
      if constexpr (kWidth > 0) {
        add_row<X, kWidth, kStride, kOutputs>(a, pixels, is_row_inside, first_column, weights, sums[0]);
      } else {
        add_row_of_any_width<X, kOutputs>(a, pixels, is_row_inside, first_column, weights, sums[0]);
      }
    }
  }
  store_strip(a, strip, sums);
}

// Computes strips of kStripRows rows of outputs of filters three rows high, without dilation. A column of
// four pixels of a word of channels becomes a word of each channel, and a dp4a multiplies it by a column of a
// filter.
template <typename X, int kWidth, int kStride, int kOutputs, int kWords>
__global__ void __launch_bounds__(kThreads, 2) depthwise_columns(const __grid_constant__ Arguments<X> a) {
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  // Two rows of outputs read the same four rows if the stride is 1.
  constexpr int kRows = strip_rows(kStride), kPixelRows = kRows + kColumnTaps - 1;
  constexpr int kColumns = (kOutputs - 1) * kStride + kWidth, kFilterWords = kWidth * kWordChannels;
  const Sizes& sizes = a.sizes;
  const Strip strip = Strip::of_thread<kRows, kOutputs, kWords>(a);
  if (!strip.exists) return;
  const int words = static_cast<int>(a.depthwise.words.divisor);
  int sums[kRows][kOutputs][kWords * kWordChannels];
  set_to_first(a, strip, sums);
  const int first_row = strip.row * kStride - sizes.pad[1],
            first_column = strip.column * kStride - sizes.pad[2];
  const unsigned long long x = global_address(static_cast<const X*>(a.conv.x) + strip.filter);
  const unsigned pixel_bytes = static_cast<unsigned>(words) * kWordChannels;
  const unsigned* weights = a.prepared_weights + strip.word;
#pragma unroll 1
  for (int t = 0; t < sizes.filter[0]; ++t, weights += kFilterWords * words) {
    const int depth = strip.depth * sizes.stride[0] + t * sizes.dilation[0] - sizes.pad[0];
    const long long image_line =
        (static_cast<long long>(strip.image) * sizes.input[0] + depth) * sizes.input[1];
    Words<kWords> w[kFilterWords];
#pragma unroll
    for (int i = 0; i < kFilterWords; ++i)
      w[i] = *reinterpret_cast<const Words<kWords>*>(weights + i * words);
    // Each row's pixel at the current column.
    unsigned long long addresses[kPixelRows];
    bool is_row_inside[kPixelRows];
#pragma unroll
    for (int r = 0; r < kPixelRows; ++r) {
      is_row_inside[r] = is_inside(depth, sizes.input[0]) && is_inside(first_row + r, sizes.input[1]);
      addresses[r] = x + ((image_line + first_row + r) * sizes.input[2] + first_column) * pixel_bytes;
    }
#pragma unroll
    for (int j = 0; j < kColumns; ++j) {
      const bool is_column_inside = is_inside(first_column + j, sizes.input[2]);
      Words<kWords> rows[kPixelRows];
#pragma unroll
      for (int r = 0; r < kPixelRows; ++r) {
#pragma unroll
        for (unsigned& word : rows[r].word) word = zero_point_word(a);
        rows[r].load_if(is_row_inside[r] && is_column_inside, addresses[r]);
        addresses[r] += pixel_bytes;
      }
#pragma unroll
      for (int i = 0; i < kWords; ++i) {
        unsigned pixels[4] = {};
#pragma unroll
        for (int r = 0; r < kPixelRows; ++r) pixels[r] = rows[r].word[i];
        transpose_bytes(pixels);
#pragma unroll
        for (int s = 0; s < kWidth; ++s) {
          if (j < s || (j - s) % kStride != 0 || (j - s) / kStride >= kOutputs) continue;
          const int q = (j - s) / kStride;
#pragma unroll
          for (int c = 0; c < kWordChannels; ++c) {
            const unsigned column = w[s * kWordChannels + c].word[i];
#pragma unroll
            for (int p = 0; p < kRows; ++p) {
              int& sum = sums[p][q][i * kWordChannels + c];
              sum = dp4a<X>(pixels[c], column << 8 * p, sum);
            }
          }
        }
      }
    }
  }
  store_strip(a, strip, sums);
}

// Writes the weights of `depthwise` and `depthwise_columns`; see Arguments.
template <typename X>
__global__ void prepare_depthwise(const __grid_constant__ Arguments<X> a) {
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  const int words = static_cast<int>(a.depthwise.words.divisor), taps = a.taps * a.sizes.filter[0];
  const int width = a.sizes.filter[2];
  const long long threads = static_cast<long long>(gridDim.x) * kPrepareThreads;
  const long long thread = blockIdx.x * static_cast<long long>(kPrepareThreads) + threadIdx.x;
  for (long long i = thread; i < a.prepared_words; i += threads) {
    const int place = static_cast<int>(i / words),
              first_filter = static_cast<int>(i - place * words) * kWordChannels;
    unsigned word = 0;
    for (int b = 0; b < kWordChannels; ++b) {
      int filter = first_filter + b, tap = place;
      if (a.depthwise.has_columns) {
        // Byte b is row b of a column.
        if (b == kColumnTaps) continue;
        const int column = place / kWordChannels;
        filter = first_filter + place % kWordChannels;
        tap = (column / width * kColumnTaps + b) * width + column % width;
      }
      const Int8 weight = a.conv.w[static_cast<long long>(filter) * taps + tap];
      word |= static_cast<unsigned>(static_cast<UInt8>(weight)) << 8 * b;
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
