#pragma once

// The way of the pixels and of the weights: prepared by a kernel of their own, in the order in which blocks
// then copy them to shared memory, as the tensor core reads them.

#include "cuda/many_channels/share.cuh"
#include "cuda/primitives/global_memory.cuh"
#include "cuda/primitives/mbarrier.cuh"
#include "cuda/primitives/pipeline_state.cuh"
#include "cuda/primitives/registers.cuh"
#include "cuda/primitives/tensor_core_formats.cuh"
#include "cuda/primitives/tma.cuh"
#include "cuda/primitives/warpgroup.cuh"

namespace convswap::many_channels {

// The places of a bundle, of a prepared tile or of a part of it.
struct Bundle {
  FastDivisor places, span;  // of all phases, and of one
  FastDivisor column_phases;

  // The place of a number: phases of one row take turns, so that neighbouring threads read neighbouring
  // pixels.
  __device__ int place(int number) const {
    if (column_phases.divisor == 1) return number;
    const int of_rows = column_phases.quotient(number);
    const int column_phase = number - of_rows * static_cast<int>(column_phases.divisor);
    const int row_phase = span.quotient(of_rows);
    return of_rows + static_cast<int>(span.divisor) *
                         (row_phase * (static_cast<int>(column_phases.divisor) - 1) + column_phase);
  }
};

// The pixel of a place, for the first tap of the depth. `tile`: where the first place lies.
template <typename Element>
__device__ inline PixelSource source_of(const Arguments<Element>& problem, const TileStart& tile,
                                        const Bundle& bundle, int place) {
  const int phase = bundle.span.quotient(place);
  const Position at = tile.position(problem, place - phase * static_cast<int>(bundle.span.divisor));
  const int plane = at.depth * problem.stride_depth - problem.pad_depth;
  const int row = at.row * problem.stride_height + problem.phase_rows[phase] - problem.pad_height;
  const int column = (at.strip * problem.strip_columns + at.column) * problem.stride_width +
                     problem.phase_columns[phase] - problem.pad_width;
  const bool exists = tile.image + at.image < problem.batch && row >= 0 && row < problem.input_height &&
                      column >= 0 && column < problem.input_width;
  return {at.image * problem.in_channels * problem.input_plane +
              (plane * problem.input_height + row) * problem.input_width + column,
          exists ? plane : kNoPlane};
}

// Loads eight channels of a pixel, of which so many exist; the others are zeros. kLeast: there are no fewer.
template <typename Format, int kLeast, typename Element = typename Format::Element>
__device__ inline void load_channels(Element (&values)[kBundleChannels], unsigned long long pixel,
                                     unsigned channel_bytes, bool exists, int channels) {
#pragma unroll
  for (int c = 0; c < kBundleChannels; ++c) {
    values[c] = Format::zero();
    if (exists && (c < kLeast || c < channels)) {
      values[c] =
          *optimization_barrier_global(reinterpret_cast<const Element*>(address_at(pixel, c, channel_bytes)));
    }
  }
}

// Some threads of a block.
struct Team {
  int thread, threads;
};

// Converts a chunk of a tile's pixels to numbers of a window and includes them in `range`. kWindowed leaves
// out what is outside of the window. `source` is the pixel of a place.
template <typename Format, bool kWindowed, typename Source, typename Element = typename Format::Element>
__device__ inline void convert_pixels(const Arguments<Element>& problem, const Element* image,
                                      const Chunk& chunk, const Bundle& bundles, Source source, Team team,
                                      BinadeWindow window, unsigned char* to, ValueRange<Element>& range) {
  const float scale = window.scale();
  const int places = bundles.places.divisor;
  const char* const from = reinterpret_cast<const char*>(image) +
                           static_cast<unsigned long long>(chunk.channel) * problem.channel_bytes +
                           chunk.depth_bytes(problem);
  for (int i = team.thread; i < problem.chunk_channels / kBundleChannels * places; i += team.threads) {
    const int bundle = bundles.places.quotient(i), number = i - bundle * places;
    const int place = bundles.place(number);
    const PixelSource own = source(place);
    const int plane = own.plane + chunk.depth_tap * problem.dilation_depth;
    const bool exists = plane >= 0 && plane < problem.input_depth;
    const unsigned long long pixel = address_at(
        global_address(from + static_cast<long long>(own.element) * static_cast<int>(sizeof(Element))),
        bundle * kBundleChannels, problem.channel_bytes);
    const int channels = problem.channels - chunk.channel - bundle * kBundleChannels;
    Element values[kBundleChannels];
    if (channels >= kBundleChannels) [[likely]] {
      load_channels<Format, kBundleChannels>(values, pixel, problem.channel_bytes, exists, kBundleChannels);
    } else {
      load_channels<Format, 0>(values, pixel, problem.channel_bytes, exists, channels);
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
    reinterpret_cast<uint4*>(to)[bundle * places + place] =
        make_uint4(words[0], words[1], words[2], words[3]);
  }
}

// Finds where the result of a place lies in a plane of its tile's first image; places between rows and slices
// are no outputs.
template <typename Element>
__device__ inline int output_of(const Arguments<Element>& problem, const TileStart& tile, int place) {
  const Position at = tile.position(problem, place);
  const int column = at.strip * problem.strip_columns + at.column;
  const bool exists = tile.image + at.image < problem.batch && at.row < problem.output_height &&
                      at.column < problem.strip_columns && column < problem.output_width;
  return exists ? at.image * problem.out_channels * problem.output_plane +
                      (at.depth * problem.output_height + at.row) * problem.output_width + column
                : kNoOutput;
}

// Prepares some of the chunks of a tile and a group: by a block.
template <typename Format, typename Element = typename Format::Element>
__device__ inline void prepare_chunks(const Arguments<Element>& problem, int number, PreparedState& state) {
  const int of_band = number / problem.shares, share = number - of_band * problem.shares;
  const int prepared = of_band / problem.groups, group = of_band - prepared * problem.groups;
  const TileStart tile(problem, (problem.first_tile + prepared) * problem.parts);
  const Bundle bundle{problem.prepared_places, problem.prepared_span, problem.column_phases};
  const Element* const image = image_of(problem, tile, group);
  for (int i = threadIdx.x; i < static_cast<int>(bundle.places.divisor); i += kPreparers) {
    state.sources[i] = source_of(problem, tile, bundle, i);
  }
  // Each part counts from its own first image.
  for (int i = threadIdx.x; share + group == 0 && i < problem.parts * problem.columns; i += kPreparers) {
    const int part = i / problem.columns;
    const TileStart own(problem, (problem.first_tile + prepared) * problem.parts + part);
    problem.prepared_outputs[static_cast<long long>(prepared) * problem.parts * problem.columns + i] =
        output_of(problem, own, i - part * problem.columns);
  }
  __syncthreads();
  const auto source = [&](int place) { return state.sources[place]; };
  const Team team{static_cast<int>(threadIdx.x), kPreparers};
  const long long first = first_prepared(problem, prepared, group);
  const int end = (share + 1) * problem.chunks / problem.shares;
  int top = kFirstTop;
  for (int i = share * problem.chunks / problem.shares; i < end; ++i) {
    unsigned char* const to = prepared_pixels(problem, first + i);
    const Chunk chunk(problem, i);
    ValueRange<Element> range;
    convert_pixels<Format, false>(problem, image, chunk, bundle, source, team, BinadeWindow(top), to, range);
    if constexpr (Format::kIsScaled) {
      PixelRange found{top, top - kBinades + 1};
      if (__syncthreads_and(range.most == 0)) {
        found = {PixelRange::kZeros, PixelRange::kZeros};
      } else if (!__syncthreads_and(range.fits(top))) [[unlikely]] {
        const ValueRange<Element> whole =
            reduce_threads(range, state, threadIdx.x == 0, [] { __syncthreads(); });
        found.top = PixelRange::kNotFinite;
        if (whole.is_finite()) {
          top = whole.window_top();
          found = {top, min(whole.bottom(), top - kBinades + 1)};
          convert_pixels<Format, true>(problem, image, chunk, bundle, source, team, BinadeWindow(top), to,
                                       range);
        }
      }
      if (threadIdx.x == 0) problem.pixel_ranges[first + i] = found;
    }
  }
}

// Converts what of a chunk lies in a lower window than what has been prepared, to a stage of shared memory,
// by all producers.
template <typename Format, typename Element = typename Format::Element>
__device__ __noinline__ void convert_low(const Arguments<Element>& problem, const Share& share, int number,
                                         int top, unsigned char* stage) {
  const TileStart tile(problem, share.tile);
  const Bundle bundle{problem.bundle_places, problem.span, problem.column_phases};
  const auto source = [&](int place) { return source_of(problem, tile, bundle, place); };
  ValueRange<Element> range;
  convert_pixels<Format, true>(problem, image_of(problem, tile, share.group), Chunk(problem, number), bundle,
                               source, {static_cast<int>(threadIdx.x) - kConsumers, kProducers},
                               BinadeWindow(top), stage, range);
  fence_proxy_async();
}

// Where the prepared weights of a block of filters begin, for a chunk of a window.
template <typename Element>
__device__ inline unsigned char* prepared_chunk(const Arguments<Element>& problem, int block, int window,
                                                int chunk) {
  const long long number = (static_cast<long long>(block) * kMostWeightWindows + window) * problem.chunks;
  return problem.prepared_weights + (number + chunk) * problem.steps * kStepUnits * 16;
}

// Prepares the weights of a filter, or of a row that has none: by a block.
template <typename Format, typename Element = typename Format::Element>
__device__ inline void prepare_row(const Arguments<Element>& problem, int own_row, PreparedState& state) {
  const int block = own_row / kRows, row = own_row % kRows;
  const int filter_blocks = problem.blocks_of_group.divisor, group = block / filter_blocks;
  const int filter = (block - group * filter_blocks) * kRows + row;  // of the group
  const bool exists = filter < problem.filters;
  const int plane_taps = problem.filter_height * problem.filter_width;
  const int taps = static_cast<int>(problem.depth_taps.divisor) * plane_taps;
  const int size = problem.channels * taps;
  const Element* const from = problem.w + (static_cast<long long>(group) * problem.filters + filter) * size;
  FilterRange found{0, 1};
  if (Format::kIsScaled && exists) {
    ValueRange<Element> range;
#pragma unroll 4
    for (int i = threadIdx.x; i < size; i += kPreparers) range.include(from[i]);
    range = reduce_threads(range, state, false, [] { __syncthreads(); });
    found = {range.top(), static_cast<unsigned>(range.windows())};
    // What the scale of a lower window would leave float32 with.
    const bool is_scaled = found.top - kBinades >= kUppermost - 126;
    if (!range.is_finite() || found.windows > (is_scaled ? kMostWeightWindows : 1)) found = {0, ~0u};
  }
  if (threadIdx.x == 0) problem.filter_ranges[own_row] = found;
  const int windows = found.windows == 2 ? 2 : 1;
  const int halves = problem.chunks * problem.steps * 2;
  for (int window = 0; window < kMostWeightWindows; ++window) {
    const BinadeWindow binades(found.top - window * kBinades);
    for (int i = threadIdx.x; i < halves; i += kPreparers) {
      const int chunk = i / (problem.steps * 2), of_chunk = i - chunk * problem.steps * 2;
      const int step = of_chunk / 2, half = of_chunk % 2;
      const Chunk own_chunk(problem, chunk);
      const int tap = own_chunk.depth_tap * plane_taps + step % plane_taps;
      const int channel = own_chunk.channel + step / plane_taps * kDepth + half * kBundleChannels;
      unsigned words[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        Element pair[2];
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const int own = channel + 2 * j + c;
          pair[c] =
              exists && own < problem.channels && window < windows ? from[own * taps + tap] : Format::zero();
          if constexpr (Format::kIsScaled) {
            if (!binades.holds(pair[c])) pair[c] = Format::zero();
          }
        }
        words[j] = Format::pair(pair[0], pair[1], binades.scale(), 0);
      }
      uint4* const to = reinterpret_cast<uint4*>(prepared_chunk(problem, block, window, chunk));
      to[step * kStepUnits + half * kRows + row] = make_uint4(words[0], words[1], words[2], words[3]);
    }
  }
}

// How many windows the weights of a block of filters have; ~0 where they cannot be multiplied. By whole
// warps.
template <typename Format, typename Element = typename Format::Element>
__device__ inline unsigned weight_windows(const Arguments<Element>& problem, int block) {
  if (!Format::kIsScaled) return 1;
  const FilterRange* const ranges = problem.filter_ranges + block * kRows + threadIdx.x % 32;
  return __reduce_max_sync(~0u, max(ranges[0].windows, ranges[32].windows));
}

// Has the weights of chunks, from one on, copied as far ahead as there is room: by a warp.
template <typename Element>
__device__ inline void copy_weights(const Arguments<Element>& problem, int block, int window, int chunk,
                                    int chunks, DynamicPipelineState& ring) {
  BlockState& state = state_of_block(problem);
  const unsigned char* from = prepared_chunk(problem, block, window, chunk);
  constexpr int kStepBytes = kStepUnits * 16;
  for (; chunks > 0; --chunks) {
    for (int left = problem.steps; left > 0; left -= problem.group_steps) {
      const int bytes = min(problem.group_steps, left) * kStepBytes;
      mbarrier_wait(&state.weights_multiplied[ring.stage], ring.phase ^ 1);
      if (elect_one()) {
        TmaMbarrier* const loaded = &state.weights_loaded[ring.stage];
        mbarrier_arrive_expect_tx(loaded, bytes);
        tma_load_1d(weight_stage(problem, ring.stage), from, bytes, loaded);
      }
      from += bytes;
      ring.advance(problem.weight_stages);
    }
  }
}

}  // namespace convswap::many_channels
