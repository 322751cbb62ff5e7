#pragma once

// Work of a block: tiles of output positions times blocks of filters, and their coordinates.

#include "cuda/many_channels/arguments.h"
#include "cuda/primitives/shared_memory_at.cuh"

namespace convswap::many_channels {

template <typename Element>
__device__ inline BlockState& block_state(const Arguments<Element>& problem) {
  return *shared_memory_at(problem.shared.state);
}
template <typename Element>
__device__ inline unsigned char* image_stage(const Arguments<Element>& problem, int stage) {
  return shared_memory_at(problem.shared.images) + stage * problem.image_stage_bytes;
}
template <typename Element>
__device__ inline unsigned char* weight_stage(const Arguments<Element>& problem, int stage) {
  return shared_memory_at(problem.shared.weights) + stage * problem.weight_stage_bytes;
}
template <typename Element>
__device__ inline int* output_offsets_at(const Arguments<Element>& problem, int stage) {
  return shared_memory_at(problem.shared.output_offsets) + stage * problem.columns;
}

// Coordinates of an output position, or of a position in one phase of the padded input. `image` and `slice`
// count from those of the tile's first position, `line` from the row of that position.
struct Position {
  int image, strip, depth, row, column;
  int slice, line;
};

// Replaces `number` by its quotient and returns the remainder. `number` rarely exceeds 32 bits.
__device__ inline int div_mod(long long& number, FastDivisor divisor) {
  const long long dividend = number;
  if (dividend >> 32 == 0) [[likely]] {
    number = divisor.quotient_of_any(static_cast<unsigned>(dividend));
  } else {
    number = dividend / static_cast<int>(divisor.divisor);
  }
  return static_cast<int>(dividend - number * static_cast<int>(divisor.divisor));
}

// Coordinates of a tile's first position. Positions are numbered along the rows of a slice, the slices of an
// image and the images. A slice is a strip of an output plane.
struct TileStart {
  long long image;
  int slice, row, column;

  template <typename Element>
  __device__ TileStart(const Arguments<Element>& problem, int tile) {
    image = static_cast<long long>(tile) * problem.columns;
    column = div_mod(image, problem.pitch);
    row = div_mod(image, problem.slice_rows);
    slice = div_mod(image, problem.slices);
  }

  // Returns the position `offset` positions after the tile's first.
  template <typename Element>
  __device__ Position position_at(const Arguments<Element>& problem, int offset) const {
    const int columns = column + offset;
    const int lines = problem.pitch.quotient_of_any(columns);
    Position at = line_start(problem, lines);
    at.column = columns - lines * static_cast<int>(problem.pitch.divisor);
    return at;
  }

  // Returns the first position of the row `lines` rows after the tile's first.
  template <typename Element>
  __device__ Position line_start(const Arguments<Element>& problem, int lines) const {
    const int slices = problem.slice_rows.quotient_of_any(row + lines);
    Position at = slice_start(problem, slices);
    at.row = row + lines - slices * static_cast<int>(problem.slice_rows.divisor);
    at.line = lines;
    return at;
  }

  // Returns the first position of the slice `slices` slices after the tile's first.
  template <typename Element>
  __device__ Position slice_start(const Arguments<Element>& problem, int slices) const {
    const int images = problem.slices.quotient_of_any(slice + slices);
    const int slice_of_image = slice + slices - images * static_cast<int>(problem.slices.divisor);
    const int strip = problem.output_depth.quotient_of_any(slice_of_image);
    return {images, strip, slice_of_image - strip * static_cast<int>(problem.output_depth.divisor), 0, 0,
            slices, 0};
  }
};

// Range of consecutive work tiles of a persistent block, within a band.
struct TileScheduler {
  int first, end;

  template <typename Element>
  __device__ explicit TileScheduler(const Arguments<Element>& problem)
      : first(problem.work_tiles_per_block * blockIdx.x +
              min(static_cast<int>(blockIdx.x), problem.blocks_with_extra_tile)),
        end(first + problem.work_tiles_per_block +
            (static_cast<int>(blockIdx.x) < problem.blocks_with_extra_tile ? 1 : 0)) {}
};

// Coordinates of a work tile: a tile, a group, a block of filters and a split of the chunks.
struct WorkTile {
  int tile;
  int prepared_tile, subtile;  // prepared tile within the band, and tile within it
  int group, filter_block;
  int global_filter_block;  // counted over the filter blocks of all groups
  int split;                // split of the tile's chunks
  int first_chunk, chunks;  // chunks of the split

  template <typename Element>
  __device__ WorkTile(const Arguments<Element>& problem, int work_index) {
    prepared_tile = problem.work_tiles_per_prepared_tile.quotient_of_any(work_index);
    work_index -= prepared_tile * static_cast<int>(problem.work_tiles_per_prepared_tile.divisor);
    subtile = problem.work_tiles_per_subtile.quotient_of_any(work_index);
    work_index -= subtile * static_cast<int>(problem.work_tiles_per_subtile.divisor);
    global_filter_block = problem.splits.quotient_of_any(work_index);
    const int splits = problem.splits.divisor;
    split = work_index - global_filter_block * splits;
    first_chunk = split * problem.chunks / splits;
    chunks = (split + 1) * problem.chunks / splits - first_chunk;
    tile = (problem.first_tile + prepared_tile) * problem.subtiles + subtile;
    group = problem.filter_blocks_per_group.quotient_of_any(global_filter_block);
    filter_block = global_filter_block - group * static_cast<int>(problem.filter_blocks_per_group.divisor);
  }

  // Index of the first filter row, counted over the filter blocks of all groups.
  __device__ int first_row() const { return global_filter_block * kWgmmaM; }
};

// Returns the group's first channel in the tile's first image.
template <typename Element>
__device__ inline const Element* image_of(const Arguments<Element>& problem, const TileStart& tile,
                                          int group) {
  return problem.x + (tile.image * problem.in_channels + static_cast<long long>(group) * problem.channels) *
                         problem.input_plane;
}

// A chunk: consecutive channels of a group, for one depth tap.
struct Chunk {
  int channel, depth_tap;

  template <typename Element>
  __device__ Chunk(const Arguments<Element>& problem, int chunk) {
    depth_tap = 0;
    if (problem.depth_taps.divisor > 1) {
      const int channel_chunk = problem.depth_taps.quotient_of_any(chunk);
      depth_tap = chunk - channel_chunk * static_cast<int>(problem.depth_taps.divisor);
      chunk = channel_chunk;
    }
    channel = chunk * problem.chunk_channels;
  }

  // Distance of the depth tap's plane from the first tap's.
  template <typename Element>
  __device__ long long depth_bytes(const Arguments<Element>& problem) const {
    if (depth_tap == 0) return 0;
    return static_cast<long long>(depth_tap * problem.dilation_depth) * problem.input_height *
           problem.input_width * static_cast<int>(sizeof(Element));
  }
};

// Returns the index of the first prepared chunk of a group in a prepared tile of the band.
template <typename Element>
__device__ inline long long first_prepared_chunk(const Arguments<Element>& problem, int prepared_tile,
                                                 int group) {
  return (static_cast<long long>(prepared_tile) * problem.groups + group) * problem.chunks;
}
template <typename Element>
__device__ inline unsigned char* prepared_pixels(const Arguments<Element>& problem, long long number) {
  return problem.prepared_pixels + number * problem.prepared_chunk_bytes;
}
template <typename Element>
__device__ inline const int* output_offsets(const Arguments<Element>& problem, const WorkTile& work_tile) {
  return problem.output_offsets +
         (static_cast<long long>(work_tile.prepared_tile) * problem.subtiles + work_tile.subtile) *
             problem.columns;
}

}  // namespace convswap::many_channels
