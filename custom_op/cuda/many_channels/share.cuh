#pragma once

// What a block works on: places of the outputs, and filters.

#include "cuda/many_channels/arguments.h"
#include "cuda/primitives/shared_memory_at.cuh"

namespace convswap::many_channels {

template <typename Element>
__device__ inline BlockState& state_of_block(const Arguments<Element>& problem) {
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
__device__ inline int* outputs_of_head(const Arguments<Element>& problem, int head) {
  return shared_memory_at(problem.shared.outputs) + head * problem.columns;
}

// A place of the outputs, or of a phase of the padded input: images counted from that of the tile's first
// place, and so are slices; lines from the one it is in.
struct Position {
  int image, strip, depth, row, column;
  int slice, line;
};

// Divides a number, which is seldom of more than 32 bits, and makes it the quotient; returns the remainder.
__device__ inline int divide(long long& number, FastDivisor divisor) {
  const long long of = number;
  if (of >> 32 == 0) [[likely]] {
    number = divisor.quotient_of_any(static_cast<unsigned>(of));
  } else {
    number = of / static_cast<int>(divisor.divisor);
  }
  return static_cast<int>(of - number * static_cast<int>(divisor.divisor));
}

// Where a tile begins: its first place. Places count through the rows of a slice, which is a
// strip of an output plane, the slices of an image and the images.
struct TileStart {
  long long image;
  int slice, row, column;

  template <typename Element>
  __device__ TileStart(const Arguments<Element>& problem, int tile) {
    image = static_cast<long long>(tile) * problem.columns;
    column = divide(image, problem.pitch);
    row = divide(image, problem.rows);
    slice = divide(image, problem.slices);
  }

  // So many places further on.
  template <typename Element>
  __device__ Position position(const Arguments<Element>& problem, int place) const {
    const int across = column + place;
    const int down = problem.pitch.quotient_of_any(across);
    Position at = of_line(problem, down);
    at.column = across - down * static_cast<int>(problem.pitch.divisor);
    return at;
  }

  // The beginning of a line, so many further on.
  template <typename Element>
  __device__ Position of_line(const Arguments<Element>& problem, int down) const {
    const int further = problem.rows.quotient_of_any(row + down);
    Position at = of_slice(problem, further);
    at.row = row + down - further * static_cast<int>(problem.rows.divisor);
    at.line = down;
    return at;
  }

  // The beginning of a slice, so many further on.
  template <typename Element>
  __device__ Position of_slice(const Arguments<Element>& problem, int further) const {
    const int images = problem.slices.quotient_of_any(slice + further);
    const int own = slice + further - images * static_cast<int>(problem.slices.divisor);
    const int strip = problem.output_depth.quotient_of_any(own);
    return {images, strip, own - strip * static_cast<int>(problem.output_depth.divisor), 0, 0, further, 0};
  }
};

// The numbers that a block works on, one after the other, of those of a band.
struct Works {
  int first, end;

  template <typename Element>
  __device__ explicit Works(const Arguments<Element>& problem)
      : first(problem.works_of_block * blockIdx.x + min(static_cast<int>(blockIdx.x), problem.longer_blocks)),
        end(first + problem.works_of_block + (static_cast<int>(blockIdx.x) < problem.longer_blocks ? 1 : 0)) {
  }
};

// The tile, the group and the block of filters of a number.
struct Share {
  int tile;
  int prepared, part;  // the tile of the band that has been prepared, and the part of it
  int group, filter_block;
  int block;                // of filters, counted through all groups
  int split;                // of the tile's chunks
  int first_chunk, chunks;  // that it has

  template <typename Element>
  __device__ Share(const Arguments<Element>& problem, int work) {
    prepared = problem.works_of_tile.quotient_of_any(work);
    work -= prepared * static_cast<int>(problem.works_of_tile.divisor);
    part = problem.works_of_part.quotient_of_any(work);
    work -= part * static_cast<int>(problem.works_of_part.divisor);
    block = problem.splits.quotient_of_any(work);
    const int splits = problem.splits.divisor;
    split = work - block * splits;
    first_chunk = split * problem.chunks / splits;
    chunks = (split + 1) * problem.chunks / splits - first_chunk;
    tile = (problem.first_tile + prepared) * problem.parts + part;
    group = problem.blocks_of_group.quotient_of_any(block);
    filter_block = block - group * static_cast<int>(problem.blocks_of_group.divisor);
  }

  // Of all rows of all blocks, the number of this one's first.
  __device__ int first_row() const { return block * kRows; }
};

// Where a tile's first image begins, in the group's first channel.
template <typename Element>
__device__ inline const Element* image_of(const Arguments<Element>& problem, const TileStart& tile,
                                          int group) {
  return problem.x + (tile.image * problem.in_channels + static_cast<long long>(group) * problem.channels) *
                         problem.input_plane;
}

// A chunk: channels of a group from one on, for a tap of the depth.
struct Chunk {
  int channel, depth_tap;

  template <typename Element>
  __device__ Chunk(const Arguments<Element>& problem, int chunk) {
    depth_tap = 0;
    if (problem.depth_taps.divisor > 1) {
      const int of_channels = problem.depth_taps.quotient_of_any(chunk);
      depth_tap = chunk - of_channels * static_cast<int>(problem.depth_taps.divisor);
      chunk = of_channels;
    }
    channel = chunk * problem.chunk_channels;
  }

  // How far the tap's plane lies behind the first's.
  template <typename Element>
  __device__ long long depth_bytes(const Arguments<Element>& problem) const {
    if (depth_tap == 0) return 0;
    return static_cast<long long>(depth_tap * problem.dilation_depth) * problem.input_height *
           problem.input_width * static_cast<int>(sizeof(Element));
  }
};

// The number of the first prepared chunk of a tile of the band and a group.
template <typename Element>
__device__ inline long long first_prepared(const Arguments<Element>& problem, int prepared, int group) {
  return (static_cast<long long>(prepared) * problem.groups + group) * problem.chunks;
}
template <typename Element>
__device__ inline unsigned char* prepared_pixels(const Arguments<Element>& problem, long long number) {
  return problem.prepared_pixels + number * problem.prepared_bytes;
}
template <typename Element>
__device__ inline const int* prepared_outputs(const Arguments<Element>& problem, const Share& share) {
  return problem.prepared_outputs +
         (static_cast<long long>(share.prepared) * problem.parts + share.part) * problem.columns;
}

}  // namespace convswap::many_channels
