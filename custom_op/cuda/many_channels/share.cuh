#pragma once

// What a block works on: places of the outputs, and filters.

#include "cuda/many_channels/arguments.h"

namespace convswap::many_channels {

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

// Where a tile begins: its first place. Places count through the rows of a slice, which is a strip of an
// output plane, the slices of an image and the images.
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

// The numbers that a block works on, one after the other.
struct Works {
  int first, end;

  template <typename Element>
  __device__ explicit Works(const Arguments<Element>& problem)
      : first(problem.works_of_block * blockIdx.x + min(static_cast<int>(blockIdx.x), problem.longer_blocks)),
        end(first + problem.works_of_block + (static_cast<int>(blockIdx.x) < problem.longer_blocks ? 1 : 0)) {
  }
};

// The tile, the group and the block of filters of a number. Those of a tile and a group follow each other,
// and only the first of them finds where the tile's pixels lie; each has them copied and converts them anew.
struct Share {
  int tile, group, filter_block;
  int block;  // of filters, counted through all groups

  template <typename Element>
  __device__ Share(const Arguments<Element>& problem, int work) {
    tile = problem.works_of_tile.quotient_of_any(work);
    block = work - tile * static_cast<int>(problem.works_of_tile.divisor);
    group = problem.blocks_of_group.quotient_of_any(block);
    filter_block = block - group * static_cast<int>(problem.blocks_of_group.divisor);
  }

  // Of all rows of all blocks, the number of this one's first.
  template <typename Element>
  __device__ int first_row(const Arguments<Element>& problem) const {
    return block * problem.row_sets * kRows;
  }
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
  // How far from a granule's boundary that moves what is copied.
  template <typename Element>
  __device__ int shift(const Arguments<Element>& problem) const {
    return static_cast<int>(depth_bytes(problem) % kGranuleBytes);
  }
};

}  // namespace convswap::many_channels
