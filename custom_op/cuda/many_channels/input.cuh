#pragma once

// The way of the input: a chunk of channels at a time, from global memory by the converters, to where the
// tensor core reads it.

#include "cuda/many_channels/share.cuh"
#include "cuda/primitives/bulk_store.cuh"
#include "cuda/primitives/warpgroup_barrier.cuh"
#include "cuda/tensor_core_formats.cuh"

namespace convswap::many_channels {

// No plane of the input is as far from any output's as that of what is no pixel.
constexpr int kNoPlane = -(1 << 30);

// Finds where the pixel of each place of a bundle lies in a channel of the tile's first image, and in which
// plane, for the first tap of the depth; padding within planes is none. By all converters.
template <typename Element>
__device__ inline void find_sources(const Arguments<Element>& problem, const TileStart& tile,
                                    PixelSource* sources) {
  const int span = problem.span.divisor;
  for (int i = threadIdx.x; i < static_cast<int>(problem.bundle_places.divisor); i += kConverters) {
    const int phase = problem.span.quotient(i);
    const Position at = tile.position(problem, i - phase * span);
    const int plane = at.depth * problem.stride_depth - problem.pad_depth;
    const int row = at.row * problem.stride_height + problem.phase_rows[phase] - problem.pad_height;
    const int column = (at.strip * problem.strip_columns + at.column) * problem.stride_width +
                       problem.phase_columns[phase] - problem.pad_width;
    const bool exists = tile.image + at.image < problem.batch && row >= 0 && row < problem.input_height &&
                        column >= 0 && column < problem.input_width;
    sources[i] = {at.image * problem.in_channels * problem.input_plane +
                      (plane * problem.input_height + row) * problem.input_width + column,
                  exists ? plane : kNoPlane};
  }
}

// Converts a chunk for a window, by all converters; returns what this thread has seen. kWindowed leaves out
// what is outside of the window.
template <typename Format, bool kWindowed, typename Element = typename Format::Element>
__device__ inline ValueRange<Element> convert(const Arguments<Element>& problem, const Element* x, int chunk,
                                              const PixelSource* sources, BinadeWindow window,
                                              unsigned char* stage) {
  const float scale = window.scale();
  const int bundle_places = problem.bundle_places.divisor;
  const int places = problem.chunk_channels / kBundleChannels * bundle_places;
  const int of_channels = chunk / problem.depth_taps;
  const int depth = (chunk - of_channels * problem.depth_taps) * problem.dilation_depth;
  const int first_channel = of_channels * problem.chunk_channels;
  const int plane_pixels = problem.input_height * problem.input_width;
  ValueRange<Element> range;
#pragma unroll 1
  for (int first = threadIdx.x; first < places; first += kPlacesAtOnce * kConverters) {
    Element values[kPlacesAtOnce][kBundleChannels];
#pragma unroll
    for (int i = 0; i < kPlacesAtOnce; ++i) {
      const int place = first + i * kConverters;
      const int bundle = problem.bundle_places.quotient(place);
      const PixelSource source =
          place < places ? sources[place - bundle * bundle_places] : PixelSource{0, kNoPlane};
      const int channel = first_channel + bundle * kBundleChannels;
      const int plane = source.plane + depth;
      const int channels = plane >= 0 && plane < problem.input_depth ? problem.channels - channel : 0;
      const Element* const from =
          x + static_cast<long long>(channel) * problem.input_plane + (source.pixel + depth * plane_pixels);
#pragma unroll
      for (int c = 0; c < kBundleChannels; ++c) {
        values[i][c] = c < channels ? from[c * problem.input_plane] : Format::zero();
      }
    }
#pragma unroll
    for (int i = 0; i < kPlacesAtOnce; ++i) {
      unsigned words[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        Element a = values[i][2 * j], b = values[i][2 * j + 1];
        if constexpr (Format::kIsScaled) {
          range.include(a, b);
          if constexpr (kWindowed) {
            if (!window.holds(a)) a = Format::zero();
            if (!window.holds(b)) b = Format::zero();
          }
        }
        words[j] = Format::pair(a, b, scale, 0);
      }
      const int place = first + i * kConverters;
      if (place < places) {
        reinterpret_cast<uint4*>(stage)[place] = make_uint4(words[0], words[1], words[2], words[3]);
      }
    }
  }
  return range;
}

}  // namespace convswap::many_channels
