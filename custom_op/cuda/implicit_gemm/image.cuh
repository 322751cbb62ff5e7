#pragma once

// Input images: TMA loads of chunks of channels from global memory, and their conversion to the layout that
// wgmma reads.

#include "cuda/implicit_gemm/arguments.h"
#include "cuda/primitives/shared_memory.cuh"
#include "cuda/primitives/tensor_core_formats.cuh"
#include "cuda/primitives/tma.cuh"

namespace convswap::implicit_gemm {

// Computes the offsets at which each pixel of a channel is stored.
template <typename Element>
__device__ inline void find_pixel_offsets(const Arguments<Element>& problem, PixelOffsets* pixel_offsets) {
  const int row_phases = problem.row_phases.divisor, column_phases = problem.column_phases.divisor;
  const int pitch = problem.pitch.divisor;
  for (int i = threadIdx.x; i < problem.input_plane; i += blockDim.x) {
    const int h = problem.input_width_divisor.quotient_of_any(i);
    const int row = h + problem.pad_height;
    const int column = i - h * problem.input_width + problem.pad_width;
    const int phase_row = problem.row_phases.quotient(row);
    const int row_phase = row - phase_row * row_phases;
    // Offset in half vectors. `row_plane` is the row phase, or the pair of row phases.
    const auto half_vector_offset = [&](int row_plane, int padded_column, int half) {
      const int phase_column = problem.column_phases.quotient(max(0, padded_column));
      if (padded_column < 0 || phase_column >= pitch || phase_row >= problem.plane_rows) return kNoOffset;
      const int plane = row_plane * column_phases + padded_column - phase_column * column_phases;
      return static_cast<unsigned short>(
          2 * (plane * problem.plane_vectors + phase_row * pitch + phase_column) + half);
    };
    pixel_offsets[i] = {half_vector_offset(row_phase, column, 0),
                        problem.pairs_rows ? half_vector_offset(row_phase / 2, column, row_phase % 2)
                                           : half_vector_offset(row_phase, column - 1, 1)};
  }
}

// A chunk: up to four channels of an image.
template <typename Element>
struct Chunk {
  static constexpr int kAlignedElements = kAlignment / sizeof(Element);
  int channels;
  long long begin;  // offset of its first element in x

  __device__ Chunk(const Arguments<Element>& problem, int image, int first_channel, int chunk)
      : channels(min(kChunkChannels, problem.channels - chunk * kChunkChannels)),
        begin((static_cast<long long>(image) * problem.in_channels + first_channel + chunk * kChunkChannels) *
              problem.input_plane) {}
  // Number of elements from the preceding kAlignment boundary to the chunk, in x and in its stage.
  __device__ int misalignment(const Arguments<Element>& problem) const {
    return static_cast<int>(reinterpret_cast<unsigned long long>(problem.x + begin) % kAlignment /
                            sizeof(Element));
  }
};

// Loads a chunk with TMA, by one thread. A TMA load covers whole 16-byte units, hence more than the chunk at
// its ends, but never memory outside x. The thread itself copies the first and last elements of x.
template <typename Element>
__device__ inline void load_chunk(const Arguments<Element>& problem, const Chunk<Element>& chunk,
                                  unsigned char* stage, TmaMbarrier* full_barrier) {
  constexpr int kAlignedElements = Chunk<Element>::kAlignedElements;
  Element* const to = reinterpret_cast<Element*>(stage);
  const int misalignment = chunk.misalignment(problem);
  // `end`, `first_copied` and `end_copied` are counted in elements from the aligned boundary before the
  // chunk.
  const int end = misalignment + chunk.channels * problem.input_plane;
  const long long boundary = chunk.begin - misalignment;
  int first_copied = 0, end_copied = end + kAlignedElements - 1 & ~(kAlignedElements - 1);
  if (boundary < 0) {
    first_copied = kAlignedElements;
    for (int i = misalignment; i < min(end, first_copied); ++i) to[i] = problem.x[boundary + i];
  }
  if (boundary + end_copied > problem.input_elements) {
    end_copied -= kAlignedElements;
    for (int i = max(max(misalignment, end_copied), first_copied); i < end; ++i)
      to[i] = problem.x[boundary + i];
  }
  if (end_copied > first_copied) {
    tma_load_1d_expect_tx(to + first_copied, problem.x + boundary + first_copied,
                          (end_copied - first_copied) * sizeof(Element), full_barrier);
  }
  mbarrier_arrive(full_barrier);
}

// Source and destination of a chunk's conversion.
template <typename Element>
struct Conversion {
  const Element* from;  // first pixel of the first channel
  int plane;            // pixels of a channel
  const PixelOffsets* pixel_offsets;
  unsigned char* to;  // the first vector's lower or upper half, in the format's first part
  int part_bytes;
  bool rows_paired, columns_paired;  // how two pixels share a vector, if they do
  BinadeWindow window;
};

// Converts kPixelsInFlight pixels that are kProducerThreads apart. kInBounds omits the bounds checks.
// kWindowed replaces values outside the binade window by zeros.
template <typename Format, bool kWindowed, int kChannels, bool kInBounds,
          typename Element = typename Format::Element>
__device__ inline void convert_pixels(const Conversion<Element>& conversion, int first,
                                      ValueRange<Element>& range) {
  const float scale = conversion.window.scale();
  Element values[kPixelsInFlight][kChunkChannels];
  PixelOffsets offsets[kPixelsInFlight];
#pragma unroll
  for (int i = 0; i < kPixelsInFlight; ++i) {
    const int pixel = first + i * kProducerThreads;
    const bool exists = kInBounds || pixel < conversion.plane;
    offsets[i] = exists ? conversion.pixel_offsets[pixel] : PixelOffsets{kNoOffset, kNoOffset};
#pragma unroll
    for (int c = 0; c < kChunkChannels; ++c) {
      values[i][c] = c < kChannels && exists ? conversion.from[c * conversion.plane + pixel] : Format::zero();
    }
  }
#pragma unroll
  for (int i = 0; i < kPixelsInFlight; ++i) {
    range.include(values[i][0], values[i][1]);
    if (kChannels > 2) range.include(values[i][2], values[i][3]);
    if constexpr (kWindowed) {
#pragma unroll
      for (int c = 0; c < kChannels; ++c) {
        if (!conversion.window.holds(values[i][c])) values[i][c] = Format::zero();
      }
    }
#pragma unroll
    for (int part = 0; part < Format::kParts; ++part) {
      const unsigned lower = Format::pair(values[i][0], values[i][1], scale, part);
      const unsigned upper = Format::pair(values[i][2], values[i][3], scale, part);
      unsigned char* const part_base = conversion.to + part * conversion.part_bytes;
      const auto store = [&](int half_vector_offset) {
        store_shared(reinterpret_cast<unsigned*>(part_base + half_vector_offset * kHalfVectorBytes), lower,
                     upper);
      };
      // A select instead of a second branch.
      const int half_vector = conversion.rows_paired ? offsets[i].paired : offsets[i].primary;
      if (half_vector != kNoOffset) store(half_vector);
      if (conversion.columns_paired && offsets[i].paired != kNoOffset) store(offsets[i].paired);
    }
  }
}

// Converts a chunk of kChannels channels from `from`. Called by all producers. Returns the range of the
// values that this thread has converted.
template <typename Format, bool kWindowed, int kChannels, typename Element = typename Format::Element>
__device__ inline ValueRange<Element> convert_channels(const Arguments<Element>& problem, int chunk,
                                                       const Element* from, const PixelOffsets* pixel_offsets,
                                                       BinadeWindow window, unsigned char* slot,
                                                       ValueRange<Element> range) {
  const bool is_half = chunk == problem.half_chunk;
  const Conversion<Element> conversion{
      from,
      problem.input_plane,
      pixel_offsets,
      slot + chunk / 2 * problem.channel_block_vectors * kVectorBytes + chunk % 2 * kHalfVectorBytes,
      problem.part_vectors * kVectorBytes,
      is_half && problem.pairs_rows,
      is_half && !problem.pairs_rows,
      window};
  int first = threadIdx.x;
#pragma unroll 1
  for (; first + (kPixelsInFlight - 1) * kProducerThreads < conversion.plane;
       first += kPixelsInFlight * kProducerThreads) {
    convert_pixels<Format, kWindowed, kChannels, true>(conversion, first, range);
  }
  if (first < conversion.plane) convert_pixels<Format, kWindowed, kChannels, false>(conversion, first, range);
  return range;
}

template <typename Format, bool kWindowed, typename Element = typename Format::Element>
__device__ inline ValueRange<Element> convert(const Arguments<Element>& problem, int chunk, int channels,
                                              const Element* from, const PixelOffsets* pixel_offsets,
                                              BinadeWindow window, unsigned char* slot,
                                              ValueRange<Element> range) {
  switch (channels) {
    case 1:
      return convert_channels<Format, kWindowed, 1>(problem, chunk, from, pixel_offsets, window, slot, range);
    case 2:
      return convert_channels<Format, kWindowed, 2>(problem, chunk, from, pixel_offsets, window, slot, range);
    case 3:
      return convert_channels<Format, kWindowed, 3>(problem, chunk, from, pixel_offsets, window, slot, range);
    default:
      return convert_channels<Format, kWindowed, 4>(problem, chunk, from, pixel_offsets, window, slot, range);
  }
}

}  // namespace convswap::implicit_gemm
