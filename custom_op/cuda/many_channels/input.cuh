#pragma once

// The way of the pixels: prepared by a kernel of their own, in the order in which blocks then copy them to
// shared memory, as the tensor core reads them.

#include "cuda/many_channels/share.cuh"
#include "cuda/primitives/global_memory.cuh"
#include "cuda/primitives/registers.cuh"
#include "cuda/primitives/tensor_core_formats.cuh"
#include "cuda/primitives/tma.cuh"

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
          *global_computed_here(reinterpret_cast<const Element*>(address_beyond(pixel, c, channel_bytes)));
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
    const unsigned long long pixel = address_beyond(
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
  show_to_copies_and_products();
}

}  // namespace convswap::many_channels
