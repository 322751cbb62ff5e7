#pragma once

// The way of the input: a chunk of channels at a time, from global memory by the converters, to where the
// tensor core reads it.

#include "cuda/many_channels/share.cuh"
#include "cuda/primitives/bulk_store.cuh"
#include "cuda/primitives/registers.cuh"
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

// Goes through what converters load at once, a batch: places of a pair of bundles, one each. A chunk has
// pairs, and each of these rounds.
template <typename Element>
struct BatchCursor {
  const Element* at;  // the pair's first channel, in the plane of the tap of the depth
  int channels;       // from there on, of the group
  int chunk, depth_tap, pair = 0, first_place = 0;

  // At the beginning of a chunk. `x`: of the tile's first image and the group.
  __device__ BatchCursor(const Arguments<Element>& problem, const Element* x, int chunk) : chunk(chunk) {
    const int of_channels = problem.depth_taps.quotient_of_any(chunk);
    depth_tap = chunk - of_channels * static_cast<int>(problem.depth_taps.divisor);
    const int channel = of_channels * problem.chunk_channels;
    channels = problem.channels - channel;
    at = x + static_cast<long long>(channel) * problem.input_plane +
         static_cast<long long>(depth_tap) * depth_step(problem);
  }

  __device__ void advance(const Arguments<Element>& problem) {
    first_place += kConverters;
    if (first_place < static_cast<int>(problem.bundle_places.divisor)) return;
    first_place = 0;
    at += kDepth * static_cast<long long>(problem.input_plane);
    channels -= kDepth;
    if (++pair < problem.chunk_channels / kDepth) return;
    pair = 0;
    ++chunk;
    if (problem.depth_taps.divisor == 1) return;
    if (++depth_tap < static_cast<int>(problem.depth_taps.divisor)) {
      // The same channels in another plane.
      at += depth_step(problem) - static_cast<long long>(problem.chunk_channels) * problem.input_plane;
      channels += problem.chunk_channels;
    } else {
      at -= (depth_tap - 1) * depth_step(problem);
      depth_tap = 0;
    }
  }

 private:
  static __device__ long long depth_step(const Arguments<Element>& problem) {
    return static_cast<long long>(problem.dilation_depth) * problem.input_height * problem.input_width;
  }
};

// The values of a batch, on their way through a converter's registers: they are loaded while those of the
// batch before are being converted.
template <typename Format>
class Batch {
 public:
  using Element = typename Format::Element;

  __device__ void load(const Arguments<Element>& problem, const BatchCursor<Element>& cursor,
                       const PixelSource* sources) {
    const int bundle_places = problem.bundle_places.divisor;
    const int place = cursor.first_place + static_cast<int>(threadIdx.x);
    const bool is_place = place < bundle_places;
    place_ = is_place ? 2 * cursor.pair * bundle_places + place : kNoPlace;
    const PixelSource source = is_place ? sources[place] : PixelSource{0, kNoPlane};
    const unsigned plane = source.plane + cursor.depth_tap * problem.dilation_depth;
    const bool exists = plane < static_cast<unsigned>(problem.input_depth);
    const Element* const from = cursor.at + source.pixel;
    if (cursor.channels >= kDepth) [[likely]] {
      load_channels<kDepth>(problem, from, exists, kDepth);
    } else {
      load_channels<0>(problem, from, exists, cursor.channels);
    }
  }

  // Stores what was loaded as numbers of a window, and includes it in `range`. kWindowed leaves out what is
  // outside of the window.
  template <bool kWindowed>
  __device__ void convert(int bundle_places, BinadeWindow window, unsigned char* stage,
                          ValueRange<Element>& range) const {
    if (place_ == kNoPlace) return;
    const float scale = window.scale();
    uint4* const to = reinterpret_cast<uint4*>(stage) + place_;
#pragma unroll
    for (int bundle = 0; bundle < 2; ++bundle) {
      unsigned words[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int c = bundle * kBundleChannels + 2 * j;
        Element a = values_[c], b = values_[c + 1];
        if constexpr (Format::kIsScaled) {
          range.include(a, b);
          if constexpr (kWindowed) {
            if (!window.holds(a)) a = Format::zero();
            if (!window.holds(b)) b = Format::zero();
          }
        }
        words[j] = Format::pair(a, b, scale, 0);
      }
      to[bundle * bundle_places] = make_uint4(words[0], words[1], words[2], words[3]);
    }
  }

 private:
  static constexpr int kNoPlace = -1;

  // Loads so many channels of a pixel, none where it does not exist; the others are zeros. kLeast: there are
  // no fewer.
  template <int kLeast>
  __device__ void load_channels(const Arguments<Element>& problem, const Element* pixel, bool exists,
                                int channels) {
    const unsigned plane_bytes = problem.input_plane * static_cast<unsigned>(sizeof(Element));
    const char* from = reinterpret_cast<const char*>(pixel);
#pragma unroll
    for (int c = 0; c < kDepth; ++c) {
      // One address after the other, an addition each.
      from = global_computed_here(from);
      values_[c] = Format::zero();
      if (exists && (c < kLeast || c < channels)) values_[c] = *reinterpret_cast<const Element*>(from);
      from += plane_bytes;
    }
  }

  Element values_[kDepth];
  int place_;  // of the stage, in the first bundle of the pair
};

// Loads a chunk and converts what of it a window holds, by all converters, and shows it to products.
template <typename Format, typename Element = typename Format::Element>
__device__ inline void convert_window(const Arguments<Element>& problem, const Element* x, int chunk,
                                      const PixelSource* sources, BinadeWindow window, unsigned char* stage) {
  ValueRange<Element> range;
  for (BatchCursor<Element> cursor(problem, x, chunk); cursor.chunk == chunk; cursor.advance(problem)) {
    Batch<Format> batch;
    batch.load(problem, cursor, sources);
    batch.template convert<true>(problem.bundle_places.divisor, window, stage, range);
  }
  show_to_copies_and_products();
}

}  // namespace convswap::many_channels
