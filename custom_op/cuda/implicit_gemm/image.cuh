#pragma once

// The way of an image: from global memory by bulk copies, a chunk of channels at a time, and converted to
// where the tensor core reads it.

#include "cuda/implicit_gemm/arguments.h"
#include "cuda/primitives/shared_memory.cuh"
#include "cuda/primitives/tensor_core_formats.cuh"
#include "cuda/primitives/tma.cuh"

namespace convswap::implicit_gemm {

// Finds the places of every pixel of a channel.
template <typename Element>
__device__ inline void find_places(const Arguments<Element>& problem, PixelPlaces* places) {
  const int row_phases = problem.row_phases.divisor, column_phases = problem.column_phases.divisor;
  const int pitch = problem.pitch.divisor;
  for (int i = threadIdx.x; i < problem.input_plane; i += blockDim.x) {
    const int h = problem.input_width_divisor.quotient_of_any(i);
    const int row = h + problem.pad_height;
    const int column = i - h * problem.input_width + problem.pad_width;
    const int lower_row = problem.row_phases.quotient(row);
    const int row_phase = row - lower_row * row_phases;
    // A half of a column's place; `rows`: the row phase of its plane, or the pair of them.
    const auto half_place = [&](int rows, int across, int half) {
      const int lower = problem.column_phases.quotient(max(0, across));
      if (across < 0 || lower >= pitch || lower_row >= problem.plane_rows) return kNoPlace;
      const int plane = rows * column_phases + across - lower * column_phases;
      return static_cast<unsigned short>(2 * (plane * problem.plane_places + lower_row * pitch + lower) +
                                         half);
    };
    places[i] = {half_place(row_phase, column, 0), problem.pairs_rows
                                                       ? half_place(row_phase / 2, column, row_phase % 2)
                                                       : half_place(row_phase, column - 1, 1)};
  }
}

// Some channels of an image, where they lie in x.
template <typename Element>
struct Chunk {
  static constexpr int kOfAlignment = kAlignment / sizeof(Element);
  int channels;
  long long begin;  // of the first, in x

  __device__ Chunk(const Arguments<Element>& problem, int image, int first_channel, int chunk)
      : channels(min(kChunkChannels, problem.channels - chunk * kChunkChannels)),
        begin((static_cast<long long>(image) * problem.in_channels + first_channel + chunk * kChunkChannels) *
              problem.input_plane) {}
  // How far it begins from a boundary, there and where it is loaded to.
  __device__ int beyond(const Arguments<Element>& problem) const {
    return static_cast<int>(reinterpret_cast<unsigned long long>(problem.x + begin) % kAlignment /
                            sizeof(Element));
  }
};

// Loads a chunk by one thread. Copies move what is aligned, and more than the chunk at its ends; but nothing
// from beside x, whose first and last elements the thread then moves itself.
template <typename Element>
__device__ inline void tma_load_1d(const Arguments<Element>& problem, const Chunk<Element>& chunk,
                                   unsigned char* stage, TmaMbarrier* loaded) {
  constexpr int kOfAlignment = Chunk<Element>::kOfAlignment;
  Element* const to = reinterpret_cast<Element*>(stage);
  const int beyond = chunk.beyond(problem);
  const int end = beyond + chunk.channels * problem.input_plane;  // counted from the boundary before it
  const long long boundary = chunk.begin - beyond;
  int first_copied = 0, end_copied = end + kOfAlignment - 1 & ~(kOfAlignment - 1);
  if (boundary < 0) {
    first_copied = kOfAlignment;
    for (int i = beyond; i < min(end, first_copied); ++i) to[i] = problem.x[boundary + i];
  }
  if (boundary + end_copied > problem.input_elements) {
    end_copied -= kOfAlignment;
    for (int i = max(max(beyond, end_copied), first_copied); i < end; ++i) to[i] = problem.x[boundary + i];
  }
  if (end_copied > first_copied) {
    tma_load_1d_expect_tx(to + first_copied, problem.x + boundary + first_copied,
                          (end_copied - first_copied) * sizeof(Element), loaded);
  }
  mbarrier_arrive(loaded);
}

// What is to be converted, and to where.
template <typename Element>
struct Conversion {
  const Element* from;  // the first channel's first pixel
  int plane;            // pixels of a channel
  const PixelPlaces* places;
  unsigned char* to;  // the first place's first or second half, of the first part
  int part_bytes;
  bool are_below, are_beside;  // two pixels in a place, and how
  BinadeWindow window;
};

// Converts kPixelsAtOnce pixels that are kProducers apart. kAreAll: all of them exist, which saves the
// questions. kWindowed leaves out what is outside of the window.
template <typename Format, bool kWindowed, int kChannels, bool kAreAll,
          typename Element = typename Format::Element>
__device__ inline void convert_pixels(const Conversion<Element>& task, int first,
                                      ValueRange<Element>& range) {
  const float scale = task.window.scale();
  Element values[kPixelsAtOnce][kChunkChannels];
  PixelPlaces place[kPixelsAtOnce];
#pragma unroll
  for (int i = 0; i < kPixelsAtOnce; ++i) {
    const int pixel = first + i * kProducers;
    const bool exists = kAreAll || pixel < task.plane;
    place[i] = exists ? task.places[pixel] : PixelPlaces{kNoPlace, kNoPlace};
#pragma unroll
    for (int c = 0; c < kChunkChannels; ++c) {
      values[i][c] = c < kChannels && exists ? task.from[c * task.plane + pixel] : Format::zero();
    }
  }
#pragma unroll
  for (int i = 0; i < kPixelsAtOnce; ++i) {
    range.include(values[i][0], values[i][1]);
    if (kChannels > 2) range.include(values[i][2], values[i][3]);
    if constexpr (kWindowed) {
#pragma unroll
      for (int c = 0; c < kChannels; ++c) {
        if (!task.window.holds(values[i][c])) values[i][c] = Format::zero();
      }
    }
#pragma unroll
    for (int part = 0; part < Format::kParts; ++part) {
      const unsigned lower = Format::pair(values[i][0], values[i][1], scale, part);
      const unsigned upper = Format::pair(values[i][2], values[i][3], scale, part);
      unsigned char* const of_part = task.to + part * task.part_bytes;
      const auto store = [&](int half_place) {
        store_shared(reinterpret_cast<unsigned*>(of_part + half_place * kHalfPlaceBytes), lower, upper);
      };
      // A choice and not a second question, which would be a branch.
      const int at = task.are_below ? place[i].paired : place[i].own;
      if (at != kNoPlace) store(at);
      if (task.are_beside && place[i].paired != kNoPlace) store(place[i].paired);
    }
  }
}

// Converts a chunk of so many channels that lies at `from`, by the producers; returns what this thread has
// seen.
template <typename Format, bool kWindowed, int kChannels, typename Element = typename Format::Element>
__device__ inline ValueRange<Element> convert_channels(const Arguments<Element>& problem, int chunk,
                                                       const Element* from, const PixelPlaces* places,
                                                       BinadeWindow window, unsigned char* slot,
                                                       ValueRange<Element> range) {
  const bool is_half = chunk == problem.half_chunk;
  const Conversion<Element> task{
      from,
      problem.input_plane,
      places,
      slot + chunk / 2 * problem.bundle_places * kPlaceBytes + chunk % 2 * kHalfPlaceBytes,
      problem.part_places * kPlaceBytes,
      is_half && problem.pairs_rows,
      is_half && !problem.pairs_rows,
      window};
  int first = threadIdx.x;
#pragma unroll 1
  for (; first + (kPixelsAtOnce - 1) * kProducers < task.plane; first += kPixelsAtOnce * kProducers) {
    convert_pixels<Format, kWindowed, kChannels, true>(task, first, range);
  }
  if (first < task.plane) convert_pixels<Format, kWindowed, kChannels, false>(task, first, range);
  return range;
}

template <typename Format, bool kWindowed, typename Element = typename Format::Element>
__device__ inline ValueRange<Element> convert(const Arguments<Element>& problem, int chunk, int channels,
                                              const Element* from, const PixelPlaces* places,
                                              BinadeWindow window, unsigned char* slot,
                                              ValueRange<Element> range) {
  switch (channels) {
    case 1:
      return convert_channels<Format, kWindowed, 1>(problem, chunk, from, places, window, slot, range);
    case 2:
      return convert_channels<Format, kWindowed, 2>(problem, chunk, from, places, window, slot, range);
    case 3:
      return convert_channels<Format, kWindowed, 3>(problem, chunk, from, places, window, slot, range);
    default:
      return convert_channels<Format, kWindowed, 4>(problem, chunk, from, places, window, slot, range);
  }
}

}  // namespace convswap::implicit_gemm
