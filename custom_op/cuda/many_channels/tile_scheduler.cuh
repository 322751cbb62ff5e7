#pragma once

// Work tiles of a block, their coordinates, and the coordinates of positions.

#include "cuda/many_channels/arguments.h"
#include "cuda/primitives/shared_memory_at.cuh"

namespace convswap::many_channels {

template <typename Element>
__device__ inline BlockState& block_state(const Arguments<Element>& problem) {
  return *shared_memory_at(problem.shared.state);
}
template <typename Element>
__device__ inline unsigned char* pixel_stage(const Arguments<Element>& problem, int stage) {
  return shared_memory_at(problem.shared.pixels) + stage * problem.pixel_stage_bytes;
}
template <typename Element>
__device__ inline unsigned char* weight_stage(const Arguments<Element>& problem, int stage) {
  return shared_memory_at(problem.shared.weights) + stage * problem.weight_stage_bytes;
}
template <typename Element>
__device__ inline int* shared_output_offsets(const Arguments<Element>& problem, int stage) {
  return shared_memory_at(problem.shared.output_offsets) + stage * problem.tile_positions;
}

// Coordinates of an output position, or of a position in one stride phase of the padded input. `image` counts
// from the image of the tile's first position.
struct Position {
  int image, strip, depth, row, column;
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

// Coordinates of the first position of an output tile. A prepared tile starts at its first output tile.
// Positions are numbered along the rows of a slice, the slices of an image and the images. A slice is a strip
// of one output depth.
struct TileStart {
  long long image;
  int slice, row, column;

  template <typename Element>
  __device__ TileStart(const Arguments<Element>& problem, int output_tile) {
    image = static_cast<long long>(output_tile) * problem.tile_positions;
    column = div_mod(image, problem.pitch);
    row = div_mod(image, problem.slice_rows);
    slice = div_mod(image, problem.slices);
  }

  // Returns the position `offset` positions after the tile's first.
  template <typename Element>
  __device__ Position position_at(const Arguments<Element>& problem, int offset) const {
    const int column_offset = column + offset;
    const int rows = problem.pitch.quotient_of_any(column_offset);
    Position at = row_start(problem, rows);
    at.column = column_offset - rows * static_cast<int>(problem.pitch.divisor);
    return at;
  }

  // Returns the first position of the row `rows` rows after the tile's first.
  template <typename Element>
  __device__ Position row_start(const Arguments<Element>& problem, int rows) const {
    const int slices = problem.slice_rows.quotient_of_any(row + rows);
    Position at = slice_start(problem, slices);
    at.row = row + rows - slices * static_cast<int>(problem.slice_rows.divisor);
    return at;
  }

  // Returns the first position of the slice `slices` slices after the tile's first.
  template <typename Element>
  __device__ Position slice_start(const Arguments<Element>& problem, int slices) const {
    const int images = problem.slices.quotient_of_any(slice + slices);
    const int slice_of_image = slice + slices - images * static_cast<int>(problem.slices.divisor);
    const int strip = problem.output_depth.quotient_of_any(slice_of_image);
    return {images, strip, slice_of_image - strip * static_cast<int>(problem.output_depth.divisor), 0, 0};
  }
};

// Range of consecutive work tiles of a persistent block, within a round.
struct TileScheduler {
  int first, end;

  template <typename Element>
  __device__ explicit TileScheduler(const Arguments<Element>& problem)
      : first(problem.work_tiles_per_block * blockIdx.x +
              min(static_cast<int>(blockIdx.x), problem.blocks_with_extra_tile)),
        end(first + problem.work_tiles_per_block +
            (static_cast<int>(blockIdx.x) < problem.blocks_with_extra_tile ? 1 : 0)) {}
};

// Coordinates of a work tile: an output tile, a filter block of a conv group, and a split of the K tiles.
struct WorkTile {
  int output_tile;
  int prepared_tile;            // within the round
  int output_tile_in_prepared;  // output tile within the prepared tile
  int conv_group, filter_block;
  int global_filter_block;  // counted over the filter blocks of all conv groups
  int split;
  int first_k_tile, k_tiles;  // of the split

  template <typename Element>
  __device__ WorkTile(const Arguments<Element>& problem, int work_index) {
    prepared_tile = problem.work_tiles_per_prepared_tile.quotient_of_any(work_index);
    work_index -= prepared_tile * static_cast<int>(problem.work_tiles_per_prepared_tile.divisor);
    output_tile_in_prepared = problem.work_tiles_per_output_tile.quotient_of_any(work_index);
    work_index -= output_tile_in_prepared * static_cast<int>(problem.work_tiles_per_output_tile.divisor);
    global_filter_block = problem.splits.quotient_of_any(work_index);
    const int splits = problem.splits.divisor;
    split = work_index - global_filter_block * splits;
    first_k_tile = split * problem.k_tiles / splits;
    k_tiles = (split + 1) * problem.k_tiles / splits - first_k_tile;
    output_tile = (problem.first_prepared_tile + prepared_tile) * problem.output_tiles_per_prepared_tile +
                  output_tile_in_prepared;
    conv_group = problem.filter_blocks_per_group.quotient_of_any(global_filter_block);
    filter_block =
        global_filter_block - conv_group * static_cast<int>(problem.filter_blocks_per_group.divisor);
  }

  // Index of the first filter row, counted over the filter blocks of all conv groups.
  __device__ int first_row() const { return global_filter_block * kWgmmaM; }
};

// Returns the conv group's first channel in the tile's first image.
template <typename Element>
__device__ inline const Element* input_of(const Arguments<Element>& problem, const TileStart& tile,
                                          int conv_group) {
  return problem.x +
         (tile.image * problem.in_channels + static_cast<long long>(conv_group) * problem.channels) *
             problem.input_plane;
}

// A K tile: consecutive channels of a conv group, for one depth tap and all taps of height and width.
struct KTile {
  int channel, depth_tap;

  template <typename Element>
  __device__ KTile(const Arguments<Element>& problem, int k_tile) {
    depth_tap = 0;
    if (problem.depth_taps.divisor > 1) {
      const int channel_k_tile = problem.depth_taps.quotient_of_any(k_tile);
      depth_tap = k_tile - channel_k_tile * static_cast<int>(problem.depth_taps.divisor);
      k_tile = channel_k_tile;
    }
    channel = k_tile * problem.k_tile_channels;
  }

  // Distance of the depth tap's input from the first depth tap's.
  template <typename Element>
  __device__ long long depth_bytes(const Arguments<Element>& problem) const {
    if (depth_tap == 0) return 0;
    return static_cast<long long>(depth_tap * problem.dilation_depth) * problem.input_height *
           problem.input_width * static_cast<int>(sizeof(Element));
  }
};

// Returns the index of the first prepared K tile of a conv group in a prepared tile of the round.
template <typename Element>
__device__ inline long long first_prepared_k_tile(const Arguments<Element>& problem, int prepared_tile,
                                                  int conv_group) {
  return (static_cast<long long>(prepared_tile) * problem.conv_groups + conv_group) * problem.k_tiles;
}
template <typename Element>
__device__ inline unsigned char* prepared_pixels(const Arguments<Element>& problem, long long number) {
  return problem.prepared_pixels + number * problem.prepared_k_tile_bytes;
}
template <typename Element>
__device__ inline const int* global_output_offsets(const Arguments<Element>& problem,
                                                   const WorkTile& work_tile) {
  return problem.output_offsets +
         (static_cast<long long>(work_tile.prepared_tile) * problem.output_tiles_per_prepared_tile +
          work_tile.output_tile_in_prepared) *
             problem.tile_positions;
}

}  // namespace convswap::many_channels
