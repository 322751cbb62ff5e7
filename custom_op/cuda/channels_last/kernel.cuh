#pragma once

// Kernels of the algorithm `channels_last`. channels_last.cc explains the algorithm and fills the arguments.

#include "conv/quantization.h"
#include "conv/small_floats.h"
#include "cuda/channels_last/arguments.h"
#include "cuda/epilogue/activations.cuh"
#include "cuda/primitives/cluster.cuh"
#include "cuda/primitives/code_results.cuh"
#include "cuda/primitives/dependent_launch.cuh"
#include "cuda/primitives/mbarrier.cuh"
#include "cuda/primitives/mma.cuh"
#include "cuda/primitives/naive_quantised_conv.cuh"
#include "cuda/primitives/nhwc_conv.cuh"
#include "cuda/primitives/pipeline_state.cuh"
#include "cuda/primitives/recomputed.cuh"
#include "cuda/primitives/requantise.cuh"
#include "cuda/primitives/shared_memory_at.cuh"
#include "cuda/primitives/small_float_pairs.cuh"
#include "cuda/primitives/tensor_tma.cuh"
#include "cuda/primitives/tma.cuh"
#include "cuda/primitives/transposed_matrices.cuh"
#include "cuda/primitives/warpgroup.cuh"
#include "cuda/primitives/wgmma.cuh"

namespace convswap::channels_last {

// Byte offset of 16-byte unit `unit` of row `row` in a matrix with rows of kRowBytes and TMA's 128-byte
// swizzle.
__device__ inline unsigned swizzled(unsigned row, unsigned unit) {
  return row * kRowBytes + ((unit ^ row % 8) << 4);
}

// Operands of a wgmma. float32 is rounded to TF32: weights by `prepare`, pixels by TMA, or by `split_pixels`.
template <typename Element>
struct Operand {
  using Type = Element;
  using Accumulator = float;
};
template <>
struct Operand<float> {
  using Type = Tf32;
  using Accumulator = float;
};
// Weights are int8 whatever x has.
template <>
struct Operand<Int8> {
  using Type = Int8;
  using Accumulator = int;
};
template <>
struct Operand<UInt8> {
  using Type = UInt8;
  using Accumulator = int;
};

__device__ inline unsigned bits_of(float value) { return __float_as_uint(value); }
__device__ inline unsigned bits_of(int value) { return static_cast<unsigned>(value); }

// The filter, of the 64 of a warpgroup, in a row of the weights. Codes have neighbouring filters in the rows
// of a thread's accumulators (8 rows apart), which then are neighbouring bytes of a result.
template <typename Element>
__device__ inline int filter_of_row(int row) {
  return kIsCode<Element> ? row / 16 * 16 + row % 8 * 2 + row % 16 / 8 : row;
}

// The weight of a conv group's filter at a channel and tap of the convolution that `kernel` computes; 0
// beyond the filters and channels, between different pixels of joined ones, and beyond the columns of a
// filter in a window.
template <typename Element>
__device__ inline Element weight_at(const Arguments<Element>& problem, int group, int filter, int channel,
                                    int tap) {
  if (filter >= problem.filters_per_group || channel >= problem.channels_per_group) return Element{};
  int y_pixel = filter;
  const int k = div_mod(y_pixel, problem.node_filters);
  int c = channel;
  if (problem.windows.row_units > 0) {
    const int column = div_mod(c, problem.windows.channel_columns) - y_pixel * problem.windows.pixel_columns;
    const int columns = static_cast<int>(problem.conv.conv.filter[2]);
    if (!is_inside(column, columns) || c >= problem.node_channels) return Element{};
    tap = tap * columns + column;
  } else {
    c -= y_pixel * problem.node_channels;
    if (!is_inside(c, problem.node_channels)) return Element{};
  }
  const long long row = static_cast<long long>(group) * problem.filters_per_group + k;
  return problem.w[(row * problem.node_channels + c) * problem.filter_taps + tap];
}

// Writes the weights in the order and the swizzle in which `kernel` loads them. A block takes one unit: a tap
// of a K chunk, for a filter block.
template <typename Element>
__global__ void __launch_bounds__(kPrepareThreads)
    prepare(const __grid_constant__ Arguments<Element> problem) {
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  const int units_per_block = problem.depth_taps * problem.channel_chunks * problem.taps;
  const int filter_block = static_cast<int>(blockIdx.x) / units_per_block;
  const int unit = static_cast<int>(blockIdx.x) % units_per_block;
  const int tap = unit % problem.taps, chunk = unit / problem.taps;
  const int depth_tap = chunk / problem.channel_chunks;
  const int first_channel = chunk % problem.channel_chunks * problem.chunk_channels;
  const int group = problem.filter_blocks_per_group.quotient_of_any(filter_block);
  const int first_filter =
      (filter_block - group * static_cast<int>(problem.filter_blocks_per_group.divisor)) *
      problem.block_filters;
  unsigned char* const to =
      problem.prepared_weights + static_cast<long long>(blockIdx.x) * problem.weight_stage_bytes;
  for (int i = static_cast<int>(threadIdx.x); i < problem.block_filters * problem.chunk_channels;
       i += kPrepareThreads) {
    const int row = i / problem.chunk_channels, k = i % problem.chunk_channels;
    const int filter = first_filter + row / kWgmmaM * kWgmmaM + filter_of_row<Element>(row % kWgmmaM);
    const int bytes = k * static_cast<int>(sizeof(Element));
    Element* const operand = reinterpret_cast<Element*>(to + swizzled(row, bytes / 16) + bytes % 16);
    const Element weight =
        weight_at(problem, group, filter, first_channel + k, depth_tap * problem.taps + tap);
    if constexpr (sizeof(Element) == sizeof(float)) {
      *operand = round_to_tf32(weight);
      if (problem.weight_stage_bytes > problem.weight_part_bytes) {
        operand[problem.weight_part_bytes / sizeof(float)] = round_to_tf32(weight - *operand);
      }
    } else {
      *operand = weight;
    }
  }
}

// True if a tap is a number of a range.
__device__ inline bool is_in(TapRange range, int tap) { return range.first <= tap && tap < range.end; }

// Writes `padding_sums`: for each filter the zero point times the weights of all taps, and those of the taps
// on padding in every other pair of a row's and a column's ranges.
template <typename Element>
__global__ void __launch_bounds__(kPrepareThreads)
    sum_padding(const __grid_constant__ Arguments<Element> problem) {
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  const int i = static_cast<int>(blockIdx.x) * kPrepareThreads + static_cast<int>(threadIdx.x);
  int pair = i;
  const int filter = div_mod(pair, problem.node_filters);
  if (pair >= problem.rows_inside.count * problem.columns_inside.count) return;
  const TapRange rows = problem.rows_inside.ranges[pair / problem.columns_inside.count];
  const TapRange columns = problem.columns_inside.ranges[pair % problem.columns_inside.count];
  const NaiveConv& conv = problem.conv.conv;
  const Int8* weight = problem.conv.w + filter * conv.channels_per_group * problem.filter_taps;
  int sum = 0;
  for (int c = 0; c < conv.channels_per_group; ++c) {
    for (int t = 0; t < conv.filter[0]; ++t) {
      for (int r = 0; r < conv.filter[1]; ++r) {
        for (int s = 0; s < conv.filter[2]; ++s, ++weight) {
          if (pair == 0 || !is_in(rows, r) || !is_in(columns, s)) sum += *weight;
        }
      }
    }
  }
  problem.padding_sums[i] = problem.conv.quantization.x_zero_point * sum;
}

// Loads four codes at any address: those of one or two words.
template <typename Code>
__device__ inline unsigned load_codes(const Code* codes) {
  const unsigned shift = reinterpret_cast<unsigned long long>(codes) % kWordCodes;
  const unsigned* const words = reinterpret_cast<const unsigned*>(codes - shift);
  // With shift 0 the second word may lie beyond the tensor.
  return shift == 0 ? words[0] : __byte_perm(words[0], words[1], 0x3210 + 0x1111 * shift);
}

// Writes the windows of x. A block takes a row of an image, a thread some of its units. Neighbouring threads
// write neighbouring units, and read neighbouring columns.
template <typename Element>
__global__ void __launch_bounds__(kWindowThreads)
    write_windows(const __grid_constant__ Arguments<Element> problem) {
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  const Windows& windows = problem.windows;
  int image = static_cast<int>(blockIdx.x);
  const int row = div_mod(image, windows.rows) - windows.pad_height;
  const bool is_row = is_inside(row, windows.height);
  const Element* const x = static_cast<const Element*>(problem.conv.x) +
                           image * problem.conv.x_strides.image +
                           row * windows.width * windows.position_stride;
  const int columns = static_cast<int>(windows.channel_columns.divisor);
  uint4* const to =
      reinterpret_cast<uint4*>(windows.codes) + static_cast<long long>(blockIdx.x) * windows.row_units;
  for (int unit = static_cast<int>(threadIdx.x); unit < windows.row_units;
       unit += static_cast<int>(blockDim.x)) {
    int position = unit;
    int channel = div_mod(position, windows.window_units) * kUnitCodes;
    int tap = div_mod(channel, windows.channel_columns);
    const int first = position * windows.stride_width - windows.pad_width;
    unsigned words[kUnitCodes / kWordCodes];
    const auto set_words = [&](const auto& word_at) {
#pragma unroll
      for (unsigned& word : words) {
        // Codes beyond the channels are multiplied by 0.
        word = word_at(min(channel, problem.node_channels - 1) * windows.channel_stride, tap);
        tap += kWordCodes;
        if (tap == columns) tap = 0, ++channel;
      }
    };
    if (is_row && windows.has_rows_of_codes && first >= 0 && first + columns <= windows.width) {
      set_words([&](int offset, int column) { return load_codes(x + (offset + first + column)); });
    } else {
      set_words([&](int offset, int first_tap) {
        unsigned word = 0;
#pragma unroll 1
        for (int i = 0; i < kWordCodes; ++i) {
          const int column = first + (first_tap + i) * windows.dilation_width;
          const int code = is_row && is_inside(column, windows.width)
                               ? x[offset + column * windows.position_stride]
                               : problem.conv.quantization.x_zero_point;
          word |= (code & 0xffu) << 8 * i;
        }
        return word;
      });
    }
    to[unit] = make_uint4(words[0], words[1], words[2], words[3]);
  }
}

// Computes one output per thread from tensors at any addresses; TMA needs multiples of 16 bytes.
template <typename Element>
__global__ void __launch_bounds__(kUnalignedThreads)
    unaligned(const __grid_constant__ Arguments<Element> problem) {
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  const long long at = static_cast<long long>(blockIdx.x) * kUnalignedThreads + threadIdx.x;
  if (at >= problem.unaligned.y_elements) return;
  if constexpr (kIsCode<Element>) {
    naive_quantised_output<Element>(problem.conv, at);
  } else {
    compute_nhwc_output(problem, problem.unaligned, at);
  }
}

// Coordinates of a work tile: a filter block, and a box of outputs.
struct WorkTile {
  int filter_block;               // counted over all conv groups
  int column, row, depth, image;  // first output

  template <typename Element>
  __device__ WorkTile(const Arguments<Element>& problem, int index) {
    filter_block = div_mod(index, problem.filter_blocks);
    column = div_mod(index, problem.column_tiles) * problem.tile_columns;
    row = div_mod(index, problem.row_tiles) * problem.tile_rows;
    depth = div_mod(index, problem.output_depth);
    image = index * problem.tile_images;
  }
};

template <typename Element>
__device__ inline BlockState& block_state(const Arguments<Element>& problem) {
  return *shared_memory_at(problem.shared.state);
}

// Advances a pipeline over the stages that another consumer takes.
__device__ inline void skip(DynamicPipelineState& pipeline, int count, int stages) {
  const int sum = pipeline.stage + count;
  pipeline.stage = sum % stages;
  pipeline.phase ^= sum / stages & 1;
}

// The K chunks of each work tile that a block multiplies, and its first work tile. The blocks of a cluster
// have the same work tile, a single one.
template <typename Element, bool kSplitsK>
struct Share {
  int first_chunk, chunks, first_index;

  __device__ explicit Share(const Arguments<Element>& problem)
      : first_chunk(0),
        chunks(problem.depth_taps * problem.channel_chunks),
        first_index(static_cast<int>(blockIdx.x)) {
    if constexpr (kSplitsK) {
      const int rank = cluster_rank(), all = chunks;
      first_chunk = all * rank / problem.splits;
      chunks = all * (rank + 1) / problem.splits - first_chunk;
      first_index /= problem.splits;
    }
  }
};

// Producer warp: loads the pixels of the block's work tiles.
template <typename Element, bool kSplitsK>
__device__ inline void load_pixels(const Arguments<Element>& problem, const Share<Element, kSplitsK>& share) {
  BlockState& state = block_state(problem);
  DynamicPipelineState pipeline;
  for (int index = share.first_index; index < problem.work_tiles; index += static_cast<int>(gridDim.x)) {
    const WorkTile tile(problem, index);
    const int group = problem.filter_blocks_per_group.quotient_of_any(tile.filter_block);
    int depth_tap = 0, channel_chunk = share.first_chunk;
    if constexpr (kSplitsK) {
      depth_tap = channel_chunk / problem.channel_chunks, channel_chunk %= problem.channel_chunks;
    }
    for (int chunk = 0; chunk < share.chunks; ++chunk) {
      mbarrier_wait(&state.pixels_empty[pipeline.stage], pipeline.phase ^ 1);
      if (elect_one()) {
        TmaMbarrier* const full = &state.pixels_full[pipeline.stage];
        mbarrier_arrive_expect_tx(full, problem.loaded_bytes);
        const int depth =
            tile.depth * problem.stride_depth - problem.pad_depth + depth_tap * problem.dilation_depth;
        unsigned char* const to =
            shared_memory_at(problem.shared.pixels) + pipeline.stage * problem.pixel_stage_bytes;
        for (int phase = 0; phase < problem.stride_phases; ++phase) {
          tma_load_tensor(
              to + phase * problem.phase_bytes, problem.x_map,
              {group * problem.channels_per_group + channel_chunk * problem.chunk_channels,
               tile.column * problem.stride_width - problem.pad_width + problem.phase_columns[phase],
               tile.row * problem.stride_height - problem.pad_height + problem.phase_rows[phase], depth,
               tile.image},
              full);
        }
      }
      pipeline.advance(problem.pixel_stages);
      if (++channel_chunk == problem.channel_chunks) channel_chunk = 0, ++depth_tap;
    }
  }
}

// Producer warp: loads the weights of the block's work tiles, once if they stay in shared memory.
template <typename Element, bool kSplitsK>
__device__ inline void load_weights(const Arguments<Element>& problem,
                                    const Share<Element, kSplitsK>& share) {
  BlockState& state = block_state(problem);
  DynamicPipelineState pipeline;
  const int units_of_all = problem.depth_taps * problem.channel_chunks * problem.taps;
  for (int index = share.first_index; index < problem.work_tiles; index += static_cast<int>(gridDim.x)) {
    const int filter_block = index - problem.filter_blocks.quotient_of_any(index) *
                                         static_cast<int>(problem.filter_blocks.divisor);
    const unsigned char* from =
        problem.prepared_weights +
        (static_cast<long long>(filter_block) * units_of_all + share.first_chunk * problem.taps) *
            problem.weight_stage_bytes;
    for (int unit = 0; unit < share.chunks * problem.taps; ++unit) {
      mbarrier_wait(&state.weights_empty[pipeline.stage], pipeline.phase ^ 1);
      if (elect_one()) {
        TmaMbarrier* const full = &state.weights_full[pipeline.stage];
        mbarrier_arrive_expect_tx(full, problem.weight_stage_bytes);
        tma_load_1d(shared_memory_at(problem.shared.weights) + pipeline.stage * problem.weight_stage_bytes,
                    from, problem.weight_stage_bytes, full);
      }
      from += problem.weight_stage_bytes;
      pipeline.advance(problem.weight_stages);
    }
    if (problem.keeps_weights) return;
  }
}

// The small part of a number: what wgmma ignores of it. wgmma truncates half a unit more, and so rounds.
__device__ inline float small_part(float number) {
  const float large = __uint_as_float(__float_as_uint(number) & ~kIgnoredBits);
  return __uint_as_float(__float_as_uint(number - large) + (kIgnoredBits + 1) / 2);
}

// Splitter warps: write the small parts of loaded pixels behind them. The pixels are their own large parts.
template <bool kSplitsK>
__device__ inline void split_pixels(const Arguments<float>& problem, const Share<float, kSplitsK>& share) {
  constexpr int kBatch = 4, kStep = kSplitterThreads * 16;
  BlockState& state = block_state(problem);
  DynamicPipelineState pipeline;
  for (int index = share.first_index; index < problem.work_tiles; index += static_cast<int>(gridDim.x)) {
    for (int chunk = 0; chunk < share.chunks; ++chunk) {
      mbarrier_wait(&state.pixels_full[pipeline.stage], pipeline.phase);
      unsigned char* const stage =
          shared_memory_at(problem.shared.pixels) + pipeline.stage * problem.pixel_stage_bytes;
      for (int first = static_cast<int>(threadIdx.x) % kSplitterThreads * 16;
           first < problem.pixel_part_bytes; first += kBatch * kStep) {
        float4 x[kBatch];
#pragma unroll
        for (int i = 0; i < kBatch; ++i) {
          const int at = first + i * kStep;
          if (at < problem.pixel_part_bytes) x[i] = *reinterpret_cast<const float4*>(stage + at);
        }
#pragma unroll
        for (int i = 0; i < kBatch; ++i) {
          const int at = first + i * kStep;
          if (at >= problem.pixel_part_bytes) break;
          *reinterpret_cast<float4*>(stage + problem.pixel_part_bytes + at) = {
              small_part(x[i].x), small_part(x[i].y), small_part(x[i].z), small_part(x[i].w)};
        }
      }
      fence_proxy_async();
      mbarrier_arrive(&state.pixels_split[pipeline.stage]);
      pipeline.advance(problem.pixel_stages);
    }
  }
}

// Goes on to the next weight stage behind a wgmma group, and releases the stages that the one before it has
// read: `previous_weights` and, unless it is -1, `previous_pixels`.
template <typename Element>
__device__ inline void advance_weights(const Arguments<Element>& problem, BlockState& state,
                                       DynamicPipelineState& weights, int& previous_weights,
                                       int& previous_pixels) {
  wgmma_wait<1>();
  if (previous_weights >= 0 && !problem.keeps_weights) {
    mbarrier_arrive(&state.weights_empty[previous_weights]);
  }
  if (previous_pixels >= 0) mbarrier_arrive(&state.pixels_empty[previous_pixels]), previous_pixels = -1;
  previous_weights = weights.stage;
  weights.advance(problem.weight_stages);
  if (problem.keeps_weights) weights.phase = 0;
}

// Main loop of a consumer warpgroup: accumulates `chunks` K chunks of a work tile onto the accumulators.
// `weights_offset` selects the warpgroup's filters in a weight stage. Returns the last pixel stage, which is
// not released. kRowWgmmas: wgmmas along K of a row, of which the rest is zero.
template <int kRowWgmmas, typename Element, int kAccumulatorTiles>
__device__ inline int mainloop(const Arguments<Element>& problem, BlockState& state, int chunks,
                               int weights_offset, DynamicPipelineState& pixels,
                               DynamicPipelineState& weights,
                               typename Operand<Element>::Accumulator (&accumulators)[kAccumulatorTiles][4]) {
  // Stages that the wgmma group before the last one reads; -1 for none.
  int previous_weights = -1, previous_pixels = -1;
  wgmma_fence_operand(accumulators);
  int chunk = 0;
  do {
    mbarrier_wait(&state.pixels_full[pixels.stage], pixels.phase);
    const unsigned char* const pixel_matrix =
        shared_memory_at(problem.shared.pixels) + pixels.stage * problem.pixel_stage_bytes;
    int tap = 0;
#pragma unroll 1
    do {
      mbarrier_wait(&state.weights_full[weights.stage], weights.phase);
      const SwizzledDescriptor a =
          SwizzledDescriptor::at(shared_memory_at(problem.shared.weights) +
                                 weights.stage * problem.weight_stage_bytes + weights_offset)
              .warp_uniform();
      const SwizzledDescriptor b =
          SwizzledDescriptor::at(pixel_matrix + problem.tap_offsets[tap]).warp_uniform();
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < kRowWgmmas; ++k) {
        wgmma<typename Operand<Element>::Type, kAccumulatorTiles>(
            accumulators, a.advanced(k * kWgmmaBytes / 16), b.advanced(k * kWgmmaBytes / 16));
      }
      wgmma_commit_group();
      advance_weights(problem, state, weights, previous_weights, previous_pixels);
    } while (++tap < problem.taps);
    previous_pixels = pixels.stage;
    pixels.advance(problem.pixel_stages);
  } while (++chunk < chunks);
  wgmma_wait_all(accumulators);
  if (!problem.keeps_weights) mbarrier_arrive(&state.weights_empty[previous_weights]);
  return previous_pixels;
}

// The two filters of a thread's accumulators: what the sums begin with, the bias.
template <typename Element>
struct ThreadFilters {
  float initial[2];

  // `first_filter` is the warpgroup's, over all conv groups.
  __device__ ThreadFilters(const Arguments<Element>& problem, int first_filter, int filters_left) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int filter = warpgroup_thread() / 32 * 16 + warpgroup_thread() % 32 / 4 + 8 * i;
      initial[i] = problem.b != nullptr && filter < filters_left
                       ? static_cast<float>(problem.b[first_filter + filter])
                       : 0.0f;
    }
  }
};

// The same for codes, whose two filters are neighbours in the results.
struct CodeFilters {
  int filter;      // the first, of the node
  int initial[2];  // the bias, less the zero point's part of the sums
  float scale[2], offset[2];
  bool is_bounded;  // as are_steps_bounded

  // `first_filter` is the warpgroup's. A thread beyond the last filter computes the first ones, and its
  // results are dropped. Both filters are of one of the joined pixels.
  template <typename Element>
  __device__ CodeFilters(const Arguments<Element>& problem, int first_filter, int filters_left) {
    const NaiveQuantisedConv& conv = problem.conv;
    const int own = filter_of_row<Element>(warpgroup_thread() / 32 * 16 + warpgroup_thread() % 32 / 4);
    int kernel_filter = first_filter + (own < filters_left ? own : 0);
    filter = div_mod(kernel_filter, problem.node_filters);
    is_bounded = true;
#pragma unroll
    for (int f = 0; f < 2; ++f) {
      const int bias = conv.b == nullptr ? 0 : conv.b[filter + f];
      initial[f] = bias - (problem.padding_sums == nullptr ? 0 : problem.padding_sums[filter + f]);
      scale[f] = conv.scale[filter + f];
      offset[f] = conv.offset == nullptr ? 0.0f : conv.offset[filter + f];
      is_bounded = is_bounded && are_steps_bounded(conv, problem.limits, bias, scale[f], offset[f]);
    }
  }
};

template <>
struct ThreadFilters<Int8> : CodeFilters {
  using CodeFilters::CodeFilters;
};
template <>
struct ThreadFilters<UInt8> : CodeFilters {
  using CodeFilters::CodeFilters;
};

template <typename Element, typename Accumulator, int kAccumulatorTiles>
__device__ inline void set_to_initial(const ThreadFilters<Element>& filters,
                                      Accumulator (&accumulators)[kAccumulatorTiles][4]) {
#pragma unroll
  for (int t = 0; t < kAccumulatorTiles; ++t) {
#pragma unroll
    for (int i = 0; i < 4; ++i) accumulators[t][i] = filters.initial[i / 2];
  }
}

template <typename Accumulator, int kAccumulatorTiles>
__device__ inline void set_to_zero(Accumulator (&accumulators)[kAccumulatorTiles][4]) {
#pragma unroll
  for (auto& values : accumulators) {
#pragma unroll
    for (Accumulator& value : values) value = 0;
  }
}

// The main loop of numbers in two parts: the products of few weight stages are summed apart, and added to the
// accumulators.
template <int kRowWgmmas, int kAccumulatorTiles>
__device__ inline int mainloop_of_parts(const Arguments<float>& problem, BlockState& state, int chunks,
                                        int weights_offset, DynamicPipelineState& pixels,
                                        DynamicPipelineState& weights,
                                        float (&accumulators)[kAccumulatorTiles][4]) {
  // As in `mainloop`.
  int previous_weights = -1, previous_pixels = -1;
  int tap = 0, units_left = chunks * problem.taps;
  do {
    float products[kAccumulatorTiles][4];
    set_to_zero(products);
    wgmma_fence_operand(products);
    const int units_after = max(0, units_left - problem.added_units);
#pragma unroll 1
    do {
      if (tap == 0) mbarrier_wait(&state.pixels_split[pixels.stage], pixels.phase);
      mbarrier_wait(&state.weights_full[weights.stage], weights.phase);
      const SwizzledDescriptor a =
          SwizzledDescriptor::at(shared_memory_at(problem.shared.weights) +
                                 weights.stage * problem.weight_stage_bytes + weights_offset)
              .warp_uniform();
      const SwizzledDescriptor b =
          SwizzledDescriptor::at(shared_memory_at(problem.shared.pixels) +
                                 pixels.stage * problem.pixel_stage_bytes + problem.tap_offsets[tap])
              .warp_uniform();
      const SwizzledDescriptor small_a = a.advanced(problem.weight_part_bytes / 16);
      const SwizzledDescriptor small_b = b.advanced(problem.pixel_part_bytes / 16);
      wgmma_fence();
      // The small products first, while the sums, which each wgmma truncates, are small.
#pragma unroll
      for (int k = 0; k < kRowWgmmas; ++k) {
        const unsigned at = k * kWgmmaBytes / 16;
        wgmma<Tf32, kAccumulatorTiles>(products, small_a.advanced(at), b.advanced(at));
        wgmma<Tf32, kAccumulatorTiles>(products, a.advanced(at), small_b.advanced(at));
      }
#pragma unroll
      for (int k = 0; k < kRowWgmmas; ++k) {
        const unsigned at = k * kWgmmaBytes / 16;
        wgmma<Tf32, kAccumulatorTiles>(products, a.advanced(at), b.advanced(at));
      }
      wgmma_commit_group();
      advance_weights(problem, state, weights, previous_weights, previous_pixels);
      if (++tap == problem.taps) {
        tap = 0, previous_pixels = pixels.stage;
        pixels.advance(problem.pixel_stages);
      }
    } while (--units_left > units_after);
    wgmma_wait_all(products);
#pragma unroll
    for (int t = 0; t < kAccumulatorTiles; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) accumulators[t][i] += products[t][i];
    }
  } while (units_left > 0);
  if (!problem.keeps_weights) mbarrier_arrive(&state.weights_empty[previous_weights]);
  return previous_pixels;
}

// Applies the activation to all results, so that the code that runs is in one piece.
template <typename Element, int kAccumulatorTiles>
__device__ inline void activate_results(const Arguments<Element>& problem,
                                        float (&accumulators)[kAccumulatorTiles][4]) {
  dispatch_any_activation(problem.epilogue_params, [&](auto activate) {
#pragma unroll
    for (auto& values : accumulators) activate(values);
  });
}

// Calls use(i, rows) for i from 0 to kCount - 1 with rows = read(i). Reading two ahead hides the latency: the
// compiler moves no read before an access in use().
template <int kCount, typename Read, typename Use>
__device__ inline void with_rows_read_ahead(Read read, Use use) {
  constexpr int kAhead = 2;
  decltype(read(0)) rows[kCount];
#pragma unroll
  for (int i = 0; i < kCount + kAhead; ++i) {
    if (i < kCount) rows[i] = read(i);
    if (i >= kAhead) use(i - kAhead, rows[i - kAhead]);
  }
}

// Where a lane's results are in a staged result chunk with rows of 64 filters.
template <typename Element>
class StagedResults {
 public:
  __device__ StagedResults(const Arguments<Element>& problem, unsigned char* staged)
      : result_rows_(shared_memory_at(problem.shared.result_rows)),
        tile_(shared_address(staged)),
        discard_(shared_address(shared_memory_at(problem.shared.discard)) + threadIdx.x % 8 * 16) {}

  // The result row of the lane's row of the four matrices of accumulator tiles t and t + 1. Matrix i has
  // filters 8 (i % 2) to 8 (i % 2) + 7 of the warp at the positions of tile t + i / 2. Without a second tile
  // its matrices are discarded.
  __device__ int result_row(int t, bool has_second) const {
    const int lane = static_cast<int>(threadIdx.x) % 32, tile_of_pair = lane / 16;
    if (tile_of_pair == 1 && !has_second) return kNoOutput;
    return result_rows_[(t + tile_of_pair) * kAccumulatorTileColumns + lane % 8];
  }

  __device__ SharedAddress matrix_row(int result_row) const {
    const unsigned warp = threadIdx.x / 32 % 4, matrix = threadIdx.x % 32 / 8;
    return result_row == kNoOutput ? discard_ : tile_ + swizzled(result_row, warp * 2 + matrix % 2);
  }

 private:
  const short* const result_rows_;
  const SharedAddress tile_, discard_;
};

// Adds the residual, which is in the staged result chunk.
template <typename Element, int kAccumulatorTiles>
__device__ inline void add_residual(const Arguments<Element>& problem, unsigned char* staged,
                                    float (&accumulators)[kAccumulatorTiles][4]) {
  const StagedResults<Element> results(problem, staged);
#pragma unroll
  for (int t = 0; t < kAccumulatorTiles; t += 2) {
    const bool has_second = t + 1 < kAccumulatorTiles;
    unsigned residual[4];
    load_transposed_matrices(residual, results.matrix_row(results.result_row(t, has_second)));
#pragma unroll
    for (int i = 0; i < (has_second ? 4 : 2); ++i) {
      accumulators[t + i / 2][i % 2 * 2] += unpack_low<Element>(residual[i]);
      accumulators[t + i / 2][i % 2 * 2 + 1] += unpack_high<Element>(residual[i]);
    }
  }
}

// Writes the results to the staged result chunk.
template <typename Element, int kAccumulatorTiles>
__device__ inline void stage_results(const Arguments<Element>& problem, unsigned char* staged,
                                     const float (&accumulators)[kAccumulatorTiles][4]) {
  const StagedResults<Element> results(problem, staged);
  const auto has_second = [](int pair) { return 2 * pair + 1 < kAccumulatorTiles; };
  with_rows_read_ahead<(kAccumulatorTiles + 1) / 2>(
      [&](int pair) { return results.result_row(2 * pair, has_second(pair)); },
      [&](int pair, int row) {
        unsigned words[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float (&values)[4] = accumulators[2 * pair + (has_second(pair) ? i / 2 : 0)];
          words[i] = pack_rounded<Element>(values[i % 2 * 2], values[i % 2 * 2 + 1]);
        }
        store_transposed_matrices(results.matrix_row(row), words);
      });
}

// The same for float32: a warp has half of the 32 filters of a result chunk. The stores have no bank
// conflicts where positions are neighbouring outputs: lanes write two neighbouring units of every other row.
template <>
class StagedResults<float> {
 public:
  __device__ StagedResults(const Arguments<float>& problem, unsigned char* staged)
      : result_rows_(shared_memory_at(problem.shared.result_rows)),
        tile_(shared_address(staged) + threadIdx.x % 32 / 4 % 4 * 4) {}

  // The result rows of the lane's two positions of an accumulator tile.
  __device__ short2 result_rows(int tile) const {
    const int position = tile * kAccumulatorTileColumns + static_cast<int>(threadIdx.x) % 4 * 2;
    return *reinterpret_cast<const short2*>(result_rows_ + position);
  }

  // Calls use(i, is_output, address) for each of the lane's accumulators of a tile. Where there is no output,
  // the address is one of the first row.
  template <typename Use>
  __device__ void for_each(short2 result_rows, Use use) const {
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 2;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = i == 0 ? result_rows.x : result_rows.y;
      const SharedAddress address = tile_ + swizzled(max(row, 0), warp * 4 + lane / 16);
      use(i, row != kNoOutput, address);
      use(2 + i, row != kNoOutput, address ^ 32);  // eight filters, two units, further on
    }
  }

 private:
  const short* const result_rows_;
  const SharedAddress tile_;
};

template <int kAccumulatorTiles>
__device__ inline void add_residual(const Arguments<float>& problem, unsigned char* staged,
                                    float (&accumulators)[kAccumulatorTiles][4]) {
  const StagedResults<float> results(problem, staged);
  with_rows_read_ahead<kAccumulatorTiles>([&](int t) { return results.result_rows(t); },
                                          [&](int t, short2 rows) {
                                            // What is added where there is no output is not stored.
                                            results.for_each(rows, [&](int i, bool, SharedAddress address) {
                                              accumulators[t][i] += load_shared_at(address);
                                            });
                                          });
}

template <int kAccumulatorTiles>
__device__ inline void stage_results(const Arguments<float>& problem, unsigned char* staged,
                                     const float (&accumulators)[kAccumulatorTiles][4]) {
  const StagedResults<float> results(problem, staged);
  with_rows_read_ahead<kAccumulatorTiles>(
      [&](int t) { return results.result_rows(t); },
      [&](int t, short2 rows) {
        results.for_each(rows, [&](int i, bool is_output, SharedAddress address) {
          store_shared_at_if(is_output, address, __float_as_uint(accumulators[t][i]));
        });
      });
}

// Byte offset of 16-byte unit `unit` of row `row` in a matrix with rows of 64 bytes and TMA's 64-byte
// swizzle.
__device__ inline unsigned swizzled_short(unsigned row, unsigned unit) {
  return row * kResultRowBytes<Int8> + ((unit ^ row / 2 % 4) << 4);
}

// The index of an output's range.
__device__ inline int range_of(const TapRanges& axis, int output) {
  if (output < axis.first_inside) return axis.at_border[output];
  return output < axis.end_inside ? 0 : axis.at_border[axis.first_inside + output - axis.end_inside];
}

// Writes the pair of ranges of each position of the warpgroup's tile to shared memory; 0 for one without
// taps on padding, and for one that is no output.
template <typename Element, int kAccumulatorTiles>
__device__ inline void write_range_pairs(const Arguments<Element>& problem, const TensorCoordinates& tile,
                                         short* range_pairs) {
  const short* const result_rows = shared_memory_at(problem.shared.result_rows);
  for (int i = warpgroup_thread(); i < kAccumulatorTiles * kAccumulatorTileColumns; i += 128) {
    const int output = result_rows[i];
    const int row_of_tile =
        static_cast<int>(problem.tile_columns_divisor.quotient(output == kNoOutput ? 0 : output));
    const int column = tile.column + output - row_of_tile * problem.tile_columns;
    const int row = tile.row + row_of_tile -
                    static_cast<int>(problem.tile_rows_divisor.quotient(row_of_tile)) * problem.tile_rows;
    // An output beyond the last has no range.
    const bool is_output =
        output != kNoOutput && row < problem.rows_inside.outputs && column < problem.columns_inside.outputs;
    range_pairs[i] =
        is_output ? static_cast<short>(range_of(problem.rows_inside, row) * problem.columns_inside.count +
                                       range_of(problem.columns_inside, column))
                  : short{0};
  }
}

// True if some outputs have taps on padding that is not the zero point.
template <typename Element>
__device__ inline bool has_borders(const Arguments<Element>& problem) {
  return problem.padding_sums != nullptr && problem.rows_inside.count * problem.columns_inside.count > 1;
}

// Adds the zero point's part of the taps on padding to the sums of outputs at borders.
template <typename Element, int kAccumulatorTiles>
__device__ inline void add_padding(const Arguments<Element>& problem, const short* range_pairs, int filter,
                                   int (&accumulators)[kAccumulatorTiles][4]) {
  const int column = static_cast<int>(threadIdx.x) % 4 * 2;
  // Both positions of each tile at once, and of all tiles before the branches.
  unsigned pairs[kAccumulatorTiles];
#pragma unroll
  for (int t = 0; t < kAccumulatorTiles; ++t) {
    pairs[t] = *reinterpret_cast<const unsigned*>(range_pairs + t * kAccumulatorTileColumns + column);
  }
#pragma unroll
  for (int t = 0; t < kAccumulatorTiles; ++t) {
    // Most positions have none: a branch of the warp, since predicated loads would take issue slots.
    if (__all_sync(~0u, pairs[t] == 0)) continue;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int pair = static_cast<int>(pairs[t] >> 16 * i & 0xffff);
      if (pair == 0) continue;
      const int* const padding =
          problem.padding_sums + pair * static_cast<int>(problem.node_filters.divisor) + filter;
      accumulators[t][i] += padding[0], accumulators[t][2 + i] += padding[1];
    }
  }
}

// Turns the sums of codes into codes of y, and writes them as rows of 64 filters to the staged result chunk,
// which has the codes of the residual.
template <CodeResults kResults, typename Element, int kAccumulatorTiles>
__device__ inline void stage_codes(const Arguments<Element>& problem, const CodeFilters& filters,
                                   unsigned char* staged, const int (&accumulators)[kAccumulatorTiles][4]) {
  const bool has_residual = kResults == CodeResults::any ? problem.conv.z != nullptr : kHasResidual<kResults>;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32 % 4;
  // As pairs of bytes, the warp's 16 filters are a row of a matrix of 16-bit numbers, and the accumulators
  // have its columns.
  const int matrix = lane / 8;
  const ResultCodes<kResults, Element> codes(problem.conv, problem.limits,
                                             __all_sync(~0u, filters.is_bounded),
                                             shared_memory_at(problem.shared.code_table));
  const float scale[4] = {filters.scale[0], filters.scale[1], filters.scale[0], filters.scale[1]};
  const float offset[4] = {filters.offset[0], filters.offset[1], filters.offset[0], filters.offset[1]};
  const SharedAddress base = shared_address(staged);
  const SharedAddress discard =
      shared_address(shared_memory_at(problem.shared.discard)) + static_cast<unsigned>(lane % 8) * 16;
  const short* const result_rows = shared_memory_at(problem.shared.result_rows);
  // The general path is a loop, since it has the code of every activation.
  constexpr int kUnrolled = kResults == CodeResults::any ? 1 : kAccumulatorTiles;
#pragma unroll kUnrolled
  for (int t = 0; t < kAccumulatorTiles; t += 4) {
    // Matrices beyond the last accumulator tile are dropped.
    const int own_tile = t + matrix;
    const int row =
        own_tile < kAccumulatorTiles ? result_rows[own_tile * kAccumulatorTileColumns + lane % 8] : kNoOutput;
    const SharedAddress address =
        row == kNoOutput ? discard : base + swizzled_short(row, static_cast<unsigned>(warp));
    unsigned residual[4] = {};
    if (has_residual) load_transposed_matrices(residual, address);
    // Position by position, with both filters of each. The loop selects registers of a known number.
    int sums[4][4] = {};
#pragma unroll
    for (int i = 0; i < kAccumulatorTiles; ++i) {
      if (i / 4 * 4 != t) continue;
      const int (&from)[4] = accumulators[i];
      sums[i % 4][0] = from[0], sums[i % 4][1] = from[2], sums[i % 4][2] = from[1], sums[i % 4][3] = from[3];
    }
    float values[4][4];
#pragma unroll
    for (int m = 0; m < 4; ++m) {
      steps_of_sums<kResults, Element>(problem.conv, problem.epilogue_params, scale, offset, sums[m],
                                       residual[m], values[m]);
    }
    codes.limit(values);
    unsigned words[4];
#pragma unroll
    for (int m = 0; m < 4; ++m) words[m] = codes.word_of(values[m]);
    store_transposed_matrices(address, words);
  }
}

// A warpgroup's results of a work tile.
template <typename Element>
struct WarpgroupResults {
  static constexpr int kChunkFilters = kWgmmaM / kResultChunks<Element>;
  int filters_left;      // from the warpgroup's first filter on; may be negative
  int chunks;            // result chunks that have filters
  TensorCoordinates at;  // the first

  // `part` is the warpgroup's, if warpgroups share the work tile.
  __device__ WarpgroupResults(const Arguments<Element>& problem, const WorkTile& tile, int part) {
    const int group = problem.filter_blocks_per_group.quotient_of_any(tile.filter_block);
    const int filter =
        (tile.filter_block - group * static_cast<int>(problem.filter_blocks_per_group.divisor)) *
            problem.block_filters +
        part * kWgmmaM;
    filters_left = problem.filters_per_group - filter;
    chunks = filters_left <= 0 ? 0 : min(kResultChunks<Element>, (filters_left - 1) / kChunkFilters + 1);
    at = {group * problem.filters_per_group + filter, tile.column, tile.row, tile.depth, tile.image};
  }

  __device__ TensorCoordinates at_chunk(int chunk) const {
    return {at.channel + chunk * kChunkFilters, at.column, at.row, at.depth, at.image};
  }
};

// True if the block `rank` adds and stores accumulator tile `tile`.
template <typename Element, int kAccumulatorTiles>
__device__ inline bool is_of_block(const Arguments<Element>& problem, int tile, int rank) {
  return tile * problem.splits / kAccumulatorTiles == rank;
}

// A thread's sums of an accumulator tile, as another block sends them.
template <typename Accumulator>
struct alignas(16) PartialSums {
  Accumulator sums[4];
};

// Adds the accumulators of the cluster's blocks, each of which has multiplied other K chunks. Afterwards the
// block's own accumulator tiles hold the sums. The others hold partial sums, whose results are dropped.
template <typename Element, typename Accumulator, int kAccumulatorTiles>
__device__ inline void add_partial_sums(const Arguments<Element>& problem, BlockState& state,
                                        Accumulator (&accumulators)[kAccumulatorTiles][4]) {
  cluster_wait();
  const int rank = cluster_rank(), block_tiles = kAccumulatorTiles / problem.splits;
  PartialSums<Accumulator>(*const received)[128] =
      reinterpret_cast<PartialSums<Accumulator>(*)[128]>(shared_memory_at(problem.shared.partial_sums));
  // Each block begins with the next rank, so that no two write to the same block at once.
#pragma unroll 1
  for (int distance = 1; distance < problem.splits; ++distance) {
    const int to = (rank + distance) % problem.splits;
#pragma unroll
    for (int t = 0; t < kAccumulatorTiles; ++t) {
      if (!is_of_block<Element, kAccumulatorTiles>(problem, t, to)) continue;
      unsigned words[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) words[i] = bits_of(accumulators[t][i]);
      store_to_block(to, &received[(distance - 1) * block_tiles + t - to * block_tiles][warpgroup_thread()],
                     words, &state.partial_sums_full);
    }
  }
  wait_for_blocks(&state.partial_sums_full, 0);
#pragma unroll
  for (int t = 0; t < kAccumulatorTiles; ++t) {
    if (!is_of_block<Element, kAccumulatorTiles>(problem, t, rank)) continue;
#pragma unroll 1
    for (int i = t - rank * block_tiles; i < kAccumulatorTiles - block_tiles; i += block_tiles) {
      const PartialSums<Accumulator> of_block = received[i][warpgroup_thread()];
#pragma unroll
      for (int k = 0; k < 4; ++k) accumulators[t][k] += of_block.sums[k];
    }
  }
}

// The output, counted over the positions of y, of a row of a result chunk; -1 for a row beyond y. `tile` is
// the first output of the work tile.
template <typename Element>
__device__ inline long long output_of_row(const Arguments<Element>& problem, const TensorCoordinates& tile,
                                          int row) {
  const int row_of_tile = static_cast<int>(problem.tile_columns_divisor.quotient(row));
  const int image_of_tile = static_cast<int>(problem.tile_rows_divisor.quotient(row_of_tile));
  const int column = tile.column + row - row_of_tile * problem.tile_columns;
  const int output_row = tile.row + row_of_tile - image_of_tile * problem.tile_rows;
  const int image = tile.image + image_of_tile;
  if (column >= problem.y_columns || output_row >= problem.y_rows || image >= problem.y_images) return -1;
  const long long depth = static_cast<long long>(image) * problem.output_depth.divisor + tile.depth;
  return (depth * problem.y_rows + output_row) * problem.y_columns + column;
}

// The sum of an output; not inline, since it is rarely needed.
template <typename Element>
__device__ __noinline__ float sum_of_output(const Arguments<Element>& problem, long long at) {
  return nhwc_sum(problem, problem.unaligned, at);
}

// Computes sums that are not finite again: the products of an infinity and small parts may be NaN.
template <int kAccumulatorTiles>
__device__ inline void mend_infinite_sums(const Arguments<float>& problem,
                                          const WarpgroupResults<float>& results,
                                          float (&accumulators)[kAccumulatorTiles][4]) {
  float zero = 0;
#pragma unroll
  for (const auto& values : accumulators) {
#pragma unroll
    for (const float value : values) zero += value * 0;
  }
  if (zero == 0) return;
  const short* const result_rows = shared_memory_at(problem.shared.result_rows);
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int t = 0; t < kAccumulatorTiles; ++t) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int filter = warpgroup_thread() / 32 * 16 + lane / 4 + i / 2 * 8;
      const int row = result_rows[t * kAccumulatorTileColumns + lane % 4 * 2 + i % 2];
      if (accumulators[t][i] * 0 == 0 || filter >= results.filters_left || row == kNoOutput) continue;
      const long long output = output_of_row(problem, results.at, row);
      if (output < 0) continue;
      accumulators[t][i] =
          recomputed(sum_of_output(problem, output * problem.y_channels + results.at.channel + filter));
    }
  }
}

// Stores the results at the positions of the block's accumulator tiles from the staged tile. A thread takes
// 16 bytes of a position at a time.
template <typename Element, int kAccumulatorTiles>
__device__ inline void store_rows(const Arguments<Element>& problem, const WarpgroupResults<Element>& results,
                                  const unsigned char* staged) {
  constexpr int kUnitElements = 16 / static_cast<int>(sizeof(Element)), kUnits = kWgmmaM / kUnitElements;
  constexpr int kChunkUnits = kUnits / kResultChunks<Element>;
  const short* const result_rows = shared_memory_at(problem.shared.result_rows);
  const int positions = kAccumulatorTiles * kAccumulatorTileColumns / problem.splits;
  const int first_position = cluster_rank() * positions;
  for (int i = warpgroup_thread(); i < positions * kUnits; i += 128) {
    const int unit = i % kUnits, row = result_rows[first_position + i / kUnits];
    if (row == kNoOutput || unit * kUnitElements >= results.filters_left) continue;
    const long long position = output_of_row(problem, results.at, row);
    if (position < 0) continue;
    const int in_chunk = unit % kChunkUnits;
    const unsigned from = kIsCode<Element> ? swizzled_short(row, in_chunk) : swizzled(row, in_chunk);
    *reinterpret_cast<uint4*>(problem.y + position * problem.y_channels + results.at.channel +
                              unit * kUnitElements) =
        *reinterpret_cast<const uint4*>(staged + unit / kChunkUnits * problem.result_chunk_bytes + from);
  }
}

// Consumer warpgroup: computes work tiles and stores their results. Warpgroups that share pixels compute
// every work tile together; others take turns. Blocks that split K have one work tile, which the first
// warpgroup computes.
template <typename Element, int kAccumulatorTiles, bool kSharesPixels, int kParts, bool kSplitsK>
__device__ inline void consume_tiles(const Arguments<Element>& problem, const Share<Element, kSplitsK>& share,
                                     int warpgroup) {
  BlockState& state = block_state(problem);
  DynamicPipelineState pixels, weights;
  // Kernels for 16-bit data have one result chunk, so the loop over result chunks runs once.
  constexpr bool kHasOneChunk = kResultChunks<Element> == 1;
  const int staged_chunks = kHasOneChunk ? 1 : problem.staged_chunks;
  const int chunk_of_warp = warpgroup_thread() / 32 * kResultChunks<Element> / 4;
  const int chunks = share.chunks, units = chunks * problem.taps;
  const auto skip_a_tile = [&] {
    skip(pixels, chunks, problem.pixel_stages);
    if (!problem.keeps_weights) skip(weights, units, problem.weight_stages);
  };
  if (!kSharesPixels && warpgroup == 1) skip_a_tile();
  const bool is_first_thread = warpgroup_thread() == 0;
  const int step = static_cast<int>(gridDim.x) * (kSharesPixels ? 1 : kConsumerWarpgroups);
  const auto results_at = [&](int index) {
    return WarpgroupResults<Element>(problem, WorkTile(problem, index), kSharesPixels ? warpgroup : 0);
  };
  unsigned char* const staged_tiles =
      shared_memory_at(problem.shared.results) + warpgroup * problem.staged_tiles * problem.staged_bytes;
  // Loads the residual of a work tile to a staged tile.
  const auto load_residual = [&](int index, int staged_tile) {
    const auto results = results_at(index);
    if (results.chunks == 0) return;
    tma_store_wait_group_read();  // the staged tile is free
    TmaMbarrier* const full = &state.residual_full[warpgroup][staged_tile];
    mbarrier_arrive_expect_tx(full, results.chunks * problem.tile_images * problem.tile_rows *
                                        problem.tile_columns * kResultRowBytes<Element>);
    for (int chunk = 0; chunk < results.chunks; ++chunk) {
      tma_load_tensor(staged_tiles + staged_tile * problem.staged_bytes + chunk * problem.result_chunk_bytes,
                      problem.residual_map, results.at_chunk(chunk), full);
    }
  };
  unsigned turn_phase = 0;
  DynamicPipelineState staging;
  const int first_index = share.first_index + (kSharesPixels ? 0 : warpgroup * static_cast<int>(gridDim.x));
  const bool loads_residual = is_first_thread && problem.z != nullptr;
  if (loads_residual && problem.staged_tiles > 1 && first_index < problem.work_tiles) {
    load_residual(first_index, 0);
  }
  // Work tiles often have the filters of the last one.
  const auto first_results = results_at(first_index);
  int filters_channel = first_results.at.channel;
  ThreadFilters<Element> filters(problem, filters_channel, first_results.filters_left);
  for (int index = first_index; index < problem.work_tiles; index += step) {
    const auto results = results_at(index);
    unsigned char* staged = staged_tiles + staging.stage * problem.staged_bytes;
    if (loads_residual && problem.staged_tiles == 1) load_residual(index, 0);
    if (results.at.channel != filters_channel) {
      filters_channel = results.at.channel;
      filters = ThreadFilters<Element>(problem, filters_channel, results.filters_left);
    }
    if (problem.takes_turns) {
      mbarrier_wait(&state.mainloop_turn[warpgroup], turn_phase ^ (warpgroup == 0 ? 1u : 0u));
      turn_phase ^= 1;
    }
    typename Operand<Element>::Accumulator accumulators[kAccumulatorTiles][4];
    set_to_initial(filters, accumulators);
    // One block of a cluster adds the bias.
    if (kSplitsK && share.first_chunk > 0) set_to_zero(accumulators);
    const int weights_offset = kSharesPixels ? warpgroup * kFilterBlockBytes : 0;
    const auto multiply = [&]<int kRowWgmmas>() {
      if constexpr (kParts > 1) {
        return mainloop_of_parts<kRowWgmmas>(problem, state, chunks, weights_offset, pixels, weights,
                                             accumulators);
      } else {
        return mainloop<kRowWgmmas>(problem, state, chunks, weights_offset, pixels, weights, accumulators);
      }
    };
    const int last_stage = problem.row_wgmmas == 1   ? multiply.template operator()<1>()
                           : problem.row_wgmmas == 2 ? multiply.template operator()<2>()
                                                     : multiply.template operator()<4>();
    if constexpr (kSplitsK) add_partial_sums(problem, state, accumulators);
    if constexpr (kParts > 1) mend_infinite_sums(problem, results, accumulators);
    if (problem.takes_turns) mbarrier_arrive(&state.mainloop_turn[warpgroup ^ 1]);
    if (!kSharesPixels) skip_a_tile();
    if (problem.stages_in_place) {
      staged = shared_memory_at(problem.shared.pixels) + last_stage * problem.pixel_stage_bytes;
    } else {
      mbarrier_arrive(&state.pixels_empty[last_stage]);
    }
    const int next_index = index + step;
    if (loads_residual && problem.staged_tiles > 1 && next_index < problem.work_tiles) {
      load_residual(next_index, results.chunks == 0 ? staging.stage : staging.stage ^ 1);
    }
    if (results.chunks == 0) continue;
    // Results of a warp beyond the last filter are not computed. TMA drops what it stores for them.
    const bool has_filters = warpgroup_thread() / 32 * (kWgmmaM / 4) < results.filters_left;
    short* const range_pairs = shared_memory_at(problem.shared.range_pairs) +
                               warpgroup * kAccumulatorTiles * kAccumulatorTileColumns;
    if constexpr (kIsCode<Element>) {
      // All threads have read the pairs of the last tile before its results were stored.
      if (has_borders(problem)) {
        write_range_pairs<Element, kAccumulatorTiles>(problem, results.at, range_pairs);
      }
    }
    if (problem.z != nullptr) {
      mbarrier_wait(&state.residual_full[warpgroup][staging.stage], staging.phase);
    }
    if constexpr (!kIsCode<Element>) {
      if (problem.z != nullptr && has_filters) {
        add_residual(problem, staged + chunk_of_warp * problem.result_chunk_bytes, accumulators);
      }
      if (problem.has_activation) activate_results(problem, accumulators);
    }
    staging.advance(problem.staged_tiles);
#pragma unroll 1
    for (int first = 0; first < (kHasOneChunk ? 1 : results.chunks); first += staged_chunks) {
      if (is_first_thread) tma_store_wait_group_read();  // the staged tile is free
      // All threads wait for the first one's stores. In-place results also overwrite pixels that the wgmmas
      // of other warps read until these warps arrive.
      sync_warpgroup(warpgroup);
      const int staged_chunk = chunk_of_warp - first;
      const bool is_staged = kHasOneChunk || (staged_chunk >= 0 && staged_chunk < staged_chunks);
      if (has_filters && is_staged) {
        unsigned char* const chunk = staged + staged_chunk * problem.result_chunk_bytes;
        if constexpr (kIsCode<Element>) {
          if (has_borders(problem)) add_padding(problem, range_pairs, filters.filter, accumulators);
          const auto stage = [&]<CodeResults kResults>() {
            stage_codes<kResults>(problem, filters, chunk, accumulators);
          };
          switch (problem.code_results) {
            case CodeResults::scaled:
              stage.template operator()<CodeResults::scaled>();
              break;
            case CodeResults::shifted:
              stage.template operator()<CodeResults::shifted>();
              break;
            case CodeResults::residual:
              stage.template operator()<CodeResults::residual>();
              break;
            case CodeResults::rounded:
              stage.template operator()<CodeResults::rounded>();
              break;
            case CodeResults::tabled:
              stage.template operator()<CodeResults::tabled>();
              break;
            case CodeResults::any:
              stage.template operator()<CodeResults::any>();
              break;
          }
        } else {
          stage_results(problem, chunk, accumulators);
        }
      }
      fence_proxy_async();
      sync_warpgroup(warpgroup);
      if constexpr (kSplitsK) {
        store_rows<Element, kAccumulatorTiles>(problem, results, staged);
      } else if (is_first_thread) {
        for (int chunk = first; chunk < min(first + staged_chunks, results.chunks); ++chunk) {
          tma_store_tensor(staged + (chunk - first) * problem.result_chunk_bytes, problem.y_map,
                           results.at_chunk(chunk));
        }
        tma_store_commit_group();
      }
    }
    if (problem.stages_in_place) {
      if (is_first_thread) tma_store_wait_group_read();
      sync_warpgroup(warpgroup);
      mbarrier_arrive(&state.pixels_empty[last_stage]);
    }
  }
  if (is_first_thread) tma_store_wait_group();
}

// The implicit GEMM: persistent blocks, kBlocks on a multiprocessor, compute work tiles of numbers in kParts.
// `prepare` has written the weights.
template <typename Element, int kAccumulatorTiles, bool kSharesPixels, bool kSplitsK, int kBlocks, int kParts>
__global__ void __launch_bounds__(block_threads(kParts), kBlocks)
    kernel(const __grid_constant__ Arguments<Element> problem) {
#if defined(__CUDA_ARCH__) && !defined(__CUDA_ARCH_FEAT_SM90_ALL)
#error "channels_last has code for compute capability 9.0 alone: compile it for sm_90a"
#else
  constexpr int kThreads = block_threads(kParts);
  BlockState& state = block_state(problem);
  const int thread = static_cast<int>(threadIdx.x);
  if (thread == 0) {
    const unsigned consumers = kSharesPixels ? kConsumerThreads : kConsumerThreads / 2;
    for (int i = 0; i < problem.pixel_stages; ++i) {
      tma_mbarrier_init(&state.pixels_full[i]);
      mbarrier_init(&state.pixels_empty[i], consumers);
      if constexpr (kParts > 1) mbarrier_init(&state.pixels_split[i], kSplitterThreads);
    }
    for (int i = 0; i < problem.weight_stages; ++i) {
      tma_mbarrier_init(&state.weights_full[i]);
      mbarrier_init(&state.weights_empty[i], consumers);
    }
    for (int i = 0; i < kConsumerWarpgroups; ++i) {
      for (int tile = 0; problem.z != nullptr && tile < problem.staged_tiles; ++tile) {
        tma_mbarrier_init(&state.residual_full[i][tile]);
      }
      mbarrier_init(&state.mainloop_turn[i], kConsumerThreads / 2);
    }
    if constexpr (kSplitsK) {
      tma_mbarrier_init(&state.partial_sums_full);
      mbarrier_arrive_expect_tx(&state.partial_sums_full,
                                (kAccumulatorTiles - kAccumulatorTiles / problem.splits) * kPartialSumBytes);
    }
  }
  // A tap of the last positions reads beyond a loaded box: zeros, where the box ends with an output's
  // padding.
  const int tail = problem.phase_bytes - problem.loaded_bytes / problem.stride_phases;
  const int phases = problem.pixel_stages * kParts * problem.stride_phases;
  for (int i = thread; i < phases * tail / 16; i += kThreads) {
    const int phase = i / (tail / 16);
    unsigned char* const at = shared_memory_at(problem.shared.pixels) + (phase + 1) * problem.phase_bytes -
                              tail + i % (tail / 16) * 16;
    *reinterpret_cast<uint4*>(at) = make_uint4(0, 0, 0, 0);
  }
  short* const result_rows = shared_memory_at(problem.shared.result_rows);
  for (int i = thread; i < kAccumulatorTiles * kAccumulatorTileColumns; i += kThreads) {
    const int image = i / problem.image_positions, in_image = i % problem.image_positions;
    const int row = in_image / problem.pitch, column = in_image % problem.pitch;
    const bool is_output =
        image < problem.tile_images && row < problem.tile_rows && column < problem.tile_columns;
    result_rows[i] =
        is_output ? static_cast<short>((image * problem.tile_rows + row) * problem.tile_columns + column)
                  : kNoOutput;
  }
  if constexpr (kIsCode<Element>) {
    if (problem.code_results == CodeResults::tabled) {
      griddepcontrol_wait();
      write_code_table(problem.conv, problem.epilogue_params, shared_memory_at(problem.shared.code_table),
                       thread, kThreads);
    }
  }
  fence_proxy_async();
  __syncthreads();
  if constexpr (kSplitsK) cluster_arrive();
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  const Share<Element, kSplitsK> share(problem);
  const int warp = __shfl_sync(~0u, thread / 32, 0);
  if (warp < kPixelWarp) {
    consume_tiles<Element, kAccumulatorTiles, kSharesPixels, kParts>(problem, share, warpgroup_index());
  } else if (warp == kPixelWarp) {
    load_pixels(problem, share);
  } else if (kParts == 1 || warp == kWeightWarp) {
    load_weights(problem, share);
  } else {
    if constexpr (kParts > 1) split_pixels(problem, share);
  }
  // The first warpgroup has waited in add_partial_sums.
  if (kSplitsK && thread >= kConsumerThreads / kConsumerWarpgroups) cluster_wait();
#endif
}

}  // namespace convswap::channels_last
