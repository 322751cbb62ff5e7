#pragma once

// The way of the pixels from where they have been copied to, a chunk of channels at a time, to where the
// tensor core reads them.

#include "cuda/many_channels/runs.cuh"
#include "cuda/primitives/bulk_store.cuh"
#include "cuda/tensor_core_formats.cuh"

namespace convswap::many_channels {

// The pixel of a place, for the first tap of the depth; padding within planes is none.
struct Pixel {
  int element;  // in a channel of the tile's first image
  int plane;    // of the input, or kNoPlane
};
template <typename Element>
__device__ inline Pixel pixel_at(const Arguments<Element>& problem, const TileStart& tile, const Position& at,
                                 int phase) {
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

// Finds where the pixel of each place of a bundle lies in a stage, by the tile's runs. By all converters.
template <typename Element>
__device__ inline void find_sources(const Arguments<Element>& problem, const TileStart& tile,
                                    const StagedRun* runs, PixelSource* sources) {
  const int span = problem.span.divisor;
  for (int i = threadIdx.x; i < static_cast<int>(problem.bundle_places.divisor); i += kConverters) {
    const int phase = problem.span.quotient(i);
    const Position at = tile.position(problem, i - phase * span);
    const Pixel pixel = pixel_at(problem, tile, at, phase);
    PixelSource source{0, kNoPlane};
    if (pixel.plane != kNoPlane) {
      const StagedRun run = runs[run_of(problem, at, problem.phases_across.quotient(phase))];
      source = {run.at + (pixel.element - run.element) * static_cast<int>(sizeof(Element)), pixel.plane};
    }
    sources[i] = source;
  }
}

// Loads 16 channels of a pixel, of which so many exist; the others are zeros. kLeast: there are no fewer.
template <typename Format, int kLeast, typename Element = typename Format::Element>
__device__ inline void load_channels(Element (&values)[kDepth], const unsigned char* pixel,
                                     long long channel_bytes, bool exists, int channels) {
#pragma unroll
  for (int c = 0; c < kDepth; ++c) {
    values[c] = Format::zero();
    if (exists && (c < kLeast || c < channels)) values[c] = *reinterpret_cast<const Element*>(pixel);
    pixel += channel_bytes;
  }
}

struct PixelAddress {
  int plane;
  const unsigned char* first_channel;
};

// Converts a chunk to numbers of a window, by all converters, shows it to products and includes it in
// `range`. kWindowed leaves out what is outside of the window. `source` tells of a place the plane of its
// pixel, for the first tap of the depth, and where the chunk's first channel of it lies, from which the
// others are so many bytes apart.
template <typename Format, bool kWindowed, typename Source, typename Element = typename Format::Element>
__device__ inline void convert_pixels(const Arguments<Element>& problem, const Chunk& chunk, Source source,
                                      long long channel_bytes, BinadeWindow window, unsigned char* stage,
                                      ValueRange<Element>& range) {
  const float scale = window.scale();
  const int places = problem.bundle_places.divisor;
  int channels = problem.channels - chunk.channel;
  uint4* to = reinterpret_cast<uint4*>(stage);
  for (int pair = 0; pair < problem.chunk_channels / kDepth; ++pair) {
    for (int place = threadIdx.x; place < places; place += kConverters) {
      const auto [plane_of_first, first] = source(place);
      const int plane = plane_of_first + chunk.depth_tap * problem.dilation_depth;
      const bool exists = plane >= 0 && plane < problem.input_depth;
      const unsigned char* const pixel = first + pair * kDepth * channel_bytes;
      Element values[kDepth];
      if (channels >= kDepth) [[likely]] {
        load_channels<Format, kDepth>(values, pixel, channel_bytes, exists, kDepth);
      } else {
        load_channels<Format, 0>(values, pixel, channel_bytes, exists, channels);
      }
#pragma unroll
      for (int bundle = 0; bundle < 2; ++bundle) {
        unsigned words[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const int c = bundle * kBundleChannels + 2 * j;
          Element a = values[c], b = values[c + 1];
          if constexpr (Format::kIsScaled) {
            range.include(a, b);
            if constexpr (kWindowed) {
              if (!window.holds(a)) a = Format::zero();
              if (!window.holds(b)) b = Format::zero();
            }
          }
          words[j] = Format::pair(a, b, scale, 0);
        }
        to[bundle * places + place] = make_uint4(words[0], words[1], words[2], words[3]);
      }
    }
    to += 2 * places;
    channels -= kDepth;
  }
  show_to_copies_and_products();
}

// What has been copied to a stage.
template <typename Format, bool kWindowed, typename Element = typename Format::Element>
__device__ inline void convert_staged(const Arguments<Element>& problem, const PixelSource* sources,
                                      const unsigned char* pixels, int number, BinadeWindow window,
                                      unsigned char* stage, ValueRange<Element>& range) {
  const Chunk chunk(problem, number);
  pixels += chunk.shift(problem);
  const auto source = [&](int place) {
    const PixelSource own = sources[place];
    return PixelAddress{own.plane, pixels + own.at};
  };
  convert_pixels<Format, kWindowed>(problem, chunk, source, problem.staged_channel_bytes, window, stage,
                                    range);
}

// What is in global memory, for the few chunks whose copies are gone.
template <typename Format, typename Element = typename Format::Element>
__device__ __noinline__ void convert_again(const Arguments<Element>& problem, const Share& share, int number,
                                           BinadeWindow window, unsigned char* stage) {
  const TileStart tile(problem, share.tile);
  const Chunk chunk(problem, number);
  const unsigned char* const from =
      reinterpret_cast<const unsigned char*>(image_of(problem, tile, share.group)) +
      static_cast<unsigned long long>(chunk.channel) * problem.channel_bytes + chunk.depth_bytes(problem);
  const auto source = [&](int place) {
    const int phase = problem.span.quotient(place);
    const Position at = tile.position(problem, place - phase * static_cast<int>(problem.span.divisor));
    const Pixel pixel = pixel_at(problem, tile, at, phase);
    return PixelAddress{pixel.plane,
                        from + static_cast<long long>(pixel.element) * static_cast<int>(sizeof(Element))};
  };
  ValueRange<Element> range;
  convert_pixels<Format, true>(problem, chunk, source, problem.channel_bytes, window, stage, range);
}

}  // namespace convswap::many_channels
