#pragma once

// Conversion of pixels and weights to operands, in the order in which they are loaded to shared memory. The
// kernel `prepare` converts pixels and weights; the producers convert low windows of pixels.

#include "cuda/many_channels/tile_scheduler.cuh"
#include "cuda/primitives/global_memory.cuh"
#include "cuda/primitives/registers.cuh"
#include "cuda/primitives/tensor_core_formats.cuh"

namespace convswap::many_channels {

// Layout of a channel block of an output tile or prepared tile, with the vectors of all stride phases.
struct ChannelBlock {
  FastDivisor vectors, stride_phase_vectors;  // of all stride phases, and of one
  FastDivisor column_stride_phases;

  // Maps the index of a pixel in the order of conversion to the index of its vector. In the order of
  // conversion the column stride phases alternate, so that neighbouring threads read neighbouring pixels.
  __device__ int vector_index(int pixel) const {
    if (column_stride_phases.divisor == 1) return pixel;
    const int row_pixel = column_stride_phases.quotient(pixel);
    const int column_stride_phase = pixel - row_pixel * static_cast<int>(column_stride_phases.divisor);
    const int row_stride_phase = stride_phase_vectors.quotient(row_pixel);
    return row_pixel + static_cast<int>(stride_phase_vectors.divisor) *
                           (row_stride_phase * (static_cast<int>(column_stride_phases.divisor) - 1) +
                            column_stride_phase);
  }
};

// Returns the source of a vector for the first depth tap.
template <typename Element>
__device__ inline PixelSource pixel_source_of(const Arguments<Element>& problem, const TileStart& tile,
                                              const ChannelBlock& layout, int vector) {
  const int stride_phase = layout.stride_phase_vectors.quotient(vector);
  const Position at = tile.position_at(
      problem, vector - stride_phase * static_cast<int>(layout.stride_phase_vectors.divisor));
  const int depth = at.depth * problem.stride_depth - problem.pad_depth;
  const int row =
      at.row * problem.stride_height + problem.stride_phase_rows[stride_phase] - problem.pad_height;
  const int column = (at.strip * problem.strip_columns + at.column) * problem.stride_width +
                     problem.stride_phase_columns[stride_phase] - problem.pad_width;
  const bool exists = tile.image + at.image < problem.batch && row >= 0 && row < problem.input_height &&
                      column >= 0 && column < problem.input_width;
  return {at.image * problem.in_channels * problem.input_plane +
              (depth * problem.input_height + row) * problem.input_width + column,
          exists ? depth : kNoDepth};
}

// Loads eight channels of a pixel. Channels from `channels` on are zeros. `channels` is at least
// kMinChannels.
template <typename Format, int kMinChannels, typename Element = typename Format::Element>
__device__ inline void load_channels(Element (&values)[kVectorChannels], unsigned long long pixel,
                                     unsigned channel_stride_bytes, bool exists, int channels) {
#pragma unroll
  for (int c = 0; c < kVectorChannels; ++c) {
    values[c] = Format::zero();
    if (exists && (c < kMinChannels || c < channels)) {
      values[c] = *optimization_barrier_global(
          reinterpret_cast<const Element*>(address_at(pixel, c, channel_stride_bytes)));
    }
  }
}

// Number of threads that convert together, and the index of this thread.
struct ThreadGroup {
  int index, count;
};

// Converts the pixels of a K tile with the scale of `window` and includes their values in `range`. kWindowed
// replaces values outside the window by zeros. `source` maps a vector to its PixelSource.
template <typename Format, bool kWindowed, typename Source, typename Element = typename Format::Element>
__device__ inline void convert_pixels(const Arguments<Element>& problem, const Element* input,
                                      const KTile& k_tile, const ChannelBlock& layout, Source source,
                                      ThreadGroup threads, BinadeWindow window, unsigned char* to,
                                      ValueRange<Element>& range) {
  const float scale = window.scale();
  const int vectors = layout.vectors.divisor;
  const char* const from = reinterpret_cast<const char*>(input) +
                           static_cast<unsigned long long>(k_tile.channel) * problem.channel_stride_bytes +
                           k_tile.depth_bytes(problem);
  for (int i = threads.index; i < problem.k_tile_channels / kVectorChannels * vectors; i += threads.count) {
    const int channel_block = layout.vectors.quotient(i), pixel_index = i - channel_block * vectors;
    const int vector = layout.vector_index(pixel_index);
    const PixelSource pixel_source = source(vector);
    const int depth = pixel_source.depth + k_tile.depth_tap * problem.dilation_depth;
    const bool exists = depth >= 0 && depth < problem.input_depth;
    const unsigned long long pixel =
        address_at(global_address(from + static_cast<long long>(pixel_source.element) *
                                             static_cast<int>(sizeof(Element))),
                   channel_block * kVectorChannels, problem.channel_stride_bytes);
    const int channels = problem.channels - k_tile.channel - channel_block * kVectorChannels;
    Element values[kVectorChannels];
    if (channels >= kVectorChannels) [[likely]] {
      load_channels<Format, kVectorChannels>(values, pixel, problem.channel_stride_bytes, exists,
                                             kVectorChannels);
    } else {
      load_channels<Format, 0>(values, pixel, problem.channel_stride_bytes, exists, channels);
    }
    unsigned words[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      Element a = values[2 * j], b = values[2 * j + 1];
      if constexpr (Format::kIsScaled) {
        range.include(a, b);
        if constexpr (kWindowed) {
          if (!window.holds(a)) a = Format::zero();
          if (!window.holds(b)) b = Format::zero();
        }
      }
      words[j] = Format::pair(a, b, scale, 0);
    }
    reinterpret_cast<uint4*>(to)[channel_block * vectors + vector] =
        make_uint4(words[0], words[1], words[2], words[3]);
  }
}

// Returns the offset of a position's result from output channel 0 of the tile's first image. Positions
// between rows and between slices are no outputs.
template <typename Element>
__device__ inline int compute_output_offset(const Arguments<Element>& problem, const TileStart& tile,
                                            int position) {
  const Position at = tile.position_at(problem, position);
  const int column = at.strip * problem.strip_columns + at.column;
  const bool exists = tile.image + at.image < problem.batch && at.row < problem.output_height &&
                      at.column < problem.strip_columns && column < problem.output_width;
  return exists ? at.image * problem.out_channels * problem.output_plane +
                      (at.depth * problem.output_height + at.row) * problem.output_width + column
                : kNoOutput;
}

// Prepares a part of the K tiles of a prepared tile and conv group. Called by all threads of a block.
template <typename Format, typename Element = typename Format::Element>
__device__ inline void prepare_k_tiles(const Arguments<Element>& problem, int block, PrepareState& state) {
  const int tile_and_group = block / problem.blocks_per_tile_and_group;
  const int part = block - tile_and_group * problem.blocks_per_tile_and_group;
  const int prepared_tile = tile_and_group / problem.conv_groups;
  const int conv_group = tile_and_group - prepared_tile * problem.conv_groups;
  const TileStart tile(
      problem, (problem.first_prepared_tile + prepared_tile) * problem.output_tiles_per_prepared_tile);
  const ChannelBlock layout{problem.prepared_channel_block_vectors, problem.prepared_stride_phase_vectors,
                            problem.column_stride_phases};
  const Element* const input = input_of(problem, tile, conv_group);
  for (int i = threadIdx.x; i < static_cast<int>(layout.vectors.divisor); i += kPrepareThreads) {
    state.sources[i] = pixel_source_of(problem, tile, layout, i);
  }
  // The output offsets count from the first image of each output tile.
  for (int i = threadIdx.x;
       part + conv_group == 0 && i < problem.output_tiles_per_prepared_tile * problem.tile_positions;
       i += kPrepareThreads) {
    const int output_tile_in_prepared = i / problem.tile_positions;
    const TileStart output_tile_start(
        problem, (problem.first_prepared_tile + prepared_tile) * problem.output_tiles_per_prepared_tile +
                     output_tile_in_prepared);
    problem.output_offsets[static_cast<long long>(prepared_tile) * problem.output_tiles_per_prepared_tile *
                               problem.tile_positions +
                           i] = compute_output_offset(problem, output_tile_start,
                                                      i - output_tile_in_prepared * problem.tile_positions);
  }
  __syncthreads();
  const auto source = [&](int vector) { return state.sources[vector]; };
  const ThreadGroup threads{static_cast<int>(threadIdx.x), kPrepareThreads};
  const long long first = first_prepared_k_tile(problem, prepared_tile, conv_group);
  const int end = (part + 1) * problem.k_tiles / problem.blocks_per_tile_and_group;
  int top = kFirstTop;
  for (int i = part * problem.k_tiles / problem.blocks_per_tile_and_group; i < end; ++i) {
    unsigned char* const to = prepared_pixels(problem, first + i);
    const KTile k_tile(problem, i);
    ValueRange<Element> range;
    convert_pixels<Format, false>(problem, input, k_tile, layout, source, threads, BinadeWindow(top), to,
                                  range);
    if constexpr (Format::kIsScaled) {
      PixelRange pixel_range{top, top - kBinades + 1};
      if (__syncthreads_and(range.max_bits == 0)) {
        pixel_range = {PixelRange::kAllZeros, PixelRange::kAllZeros};
      } else if (!__syncthreads_and(range.fits(top))) [[unlikely]] {
        const ValueRange<Element> block_range =
            reduce_threads(range, state, threadIdx.x == 0, [] { __syncthreads(); });
        pixel_range.top = PixelRange::kNotFinite;
        if (block_range.is_finite()) {
          top = block_range.window_top();
          pixel_range = {top, min(block_range.bottom(), top - kBinades + 1)};
          convert_pixels<Format, true>(problem, input, k_tile, layout, source, threads, BinadeWindow(top), to,
                                       range);
        }
      }
      if (threadIdx.x == 0) problem.pixel_ranges[first + i] = pixel_range;
    }
  }
}

// Converts the values of a K tile in the low window whose highest binade is `top`, into a pixel stage. Called
// by all producers.
template <typename Format, typename Element = typename Format::Element>
__device__ __noinline__ void convert_window(const Arguments<Element>& problem, const WorkTile& work_tile,
                                            int k_tile, int top, unsigned char* stage) {
  const TileStart tile(problem, work_tile.output_tile);
  const ChannelBlock layout{problem.channel_block_vectors, problem.stride_phase_vectors,
                            problem.column_stride_phases};
  const auto source = [&](int vector) { return pixel_source_of(problem, tile, layout, vector); };
  ValueRange<Element> range;
  convert_pixels<Format, true>(
      problem, input_of(problem, tile, work_tile.conv_group), KTile(problem, k_tile), layout, source,
      {static_cast<int>(threadIdx.x) - kConsumerThreads, kProducerThreads}, BinadeWindow(top), stage, range);
}

// Returns the prepared weights of a filter block for a K tile and a binade window.
template <typename Element>
__device__ inline unsigned char* prepared_k_tile_weights(const Arguments<Element>& problem,
                                                         int global_filter_block, int window, int k_tile) {
  const long long first_k_tile =
      (static_cast<long long>(global_filter_block) * kMaxWeightWindows + window) * problem.k_tiles;
  return problem.prepared_weights + (first_k_tile + k_tile) * problem.steps * kStepUnits * 16;
}

// Prepares the weights of a filter row. Rows that pad the last filter block are zeros. Called by all threads
// of a block.
template <typename Format, typename Element = typename Format::Element>
__device__ inline void prepare_filter(const Arguments<Element>& problem, int filter_row,
                                      PrepareState& state) {
  const int block = filter_row / kWgmmaM, row = filter_row % kWgmmaM;
  const int filter_blocks = problem.filter_blocks_per_group.divisor, conv_group = block / filter_blocks;
  const int filter = (block - conv_group * filter_blocks) * kWgmmaM + row;  // within the conv group
  const bool exists = filter < problem.filters;
  const int taps_per_depth = problem.filter_height * problem.filter_width;
  const int taps = static_cast<int>(problem.depth_taps.divisor) * taps_per_depth;
  const int size = problem.channels * taps;
  const Element* const from =
      problem.w + (static_cast<long long>(conv_group) * problem.filters + filter) * size;
  FilterRange filter_range{0, 1};
  if (Format::kIsScaled && exists) {
    ValueRange<Element> range;
#pragma unroll 4
    for (int i = threadIdx.x; i < size; i += kPrepareThreads) range.include(from[i]);
    range = reduce_threads(range, state, false, [] { __syncthreads(); });
    filter_range = {range.top(), static_cast<unsigned>(range.windows())};
    // True if the scale exponent of the second window is not clamped (scale_exponent). It is then the first
    // window's plus kBinades, as PixelStageInfo::exponent assumes.
    const bool has_second_window = filter_range.top - kBinades >= kScaledTop - 126;
    if (!range.is_finite() || filter_range.windows > (has_second_window ? kMaxWeightWindows : 1))
      filter_range = {0, ~0u};
  }
  if (threadIdx.x == 0) problem.filter_ranges[filter_row] = filter_range;
  const int windows = filter_range.windows == 2 ? 2 : 1;
  const int halves = problem.k_tiles * problem.steps * 2;
  for (int window = 0; window < kMaxWeightWindows; ++window) {
    const BinadeWindow binades(filter_range.top - window * kBinades);
    for (int i = threadIdx.x; i < halves; i += kPrepareThreads) {
      const int k_tile = i / (problem.steps * 2), half_step = i - k_tile * problem.steps * 2;
      const int step = half_step / 2, half = half_step % 2;
      const KTile k_tile_taps(problem, k_tile);
      const int tap = k_tile_taps.depth_tap * taps_per_depth + step % taps_per_depth;
      const int channel = k_tile_taps.channel + step / taps_per_depth * kWgmmaK + half * kVectorChannels;
      unsigned words[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        Element pair[2];
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const int weight_channel = channel + 2 * j + c;
          pair[c] = exists && weight_channel < problem.channels && window < windows
                        ? from[weight_channel * taps + tap]
                        : Format::zero();
          if constexpr (Format::kIsScaled) {
            if (!binades.holds(pair[c])) pair[c] = Format::zero();
          }
        }
        words[j] = Format::pair(pair[0], pair[1], binades.scale(), 0);
      }
      uint4* const to = reinterpret_cast<uint4*>(prepared_k_tile_weights(problem, block, window, k_tile));
      to[step * kStepUnits + half * kWgmmaM + row] = make_uint4(words[0], words[1], words[2], words[3]);
    }
  }
}

// Returns the number of binade windows of a filter block's weights, or ~0 if wgmma cannot compute one of the
// filters. Called by all lanes of a warp.
template <typename Format, typename Element = typename Format::Element>
__device__ inline unsigned weight_windows(const Arguments<Element>& problem, int global_filter_block) {
  if (!Format::kIsScaled) return 1;
  const FilterRange* const ranges = problem.filter_ranges + global_filter_block * kWgmmaM + threadIdx.x % 32;
  return __reduce_max_sync(~0u, max(ranges[0].windows, ranges[32].windows));
}

}  // namespace convswap::many_channels
