#pragma once

// What a block works on: places of the outputs, and filters.

#include "cuda/many_channels/arguments.h"

namespace convswap::many_channels {

// A place of the outputs, or of a phase of the padded input: images counted from that of the tile's first
// place.
struct Position {
  int image, strip, depth, row, column;
};

// Where a tile begins: its first place. Places count through the rows of a slice, which is a strip of an
// output plane, the slices of an image and the images.
struct TileStart {
  long long image;
  int slice, row, column;

  template <typename Element>
  __device__ TileStart(const Arguments<Element>& problem, long long tile) {
    const long long place = tile * problem.columns;
    const long long line = place / static_cast<int>(problem.pitch.divisor);
    column = static_cast<int>(place - line * static_cast<int>(problem.pitch.divisor));
    const long long all_slices = line / static_cast<int>(problem.rows.divisor);
    row = static_cast<int>(line - all_slices * static_cast<int>(problem.rows.divisor));
    image = all_slices / static_cast<int>(problem.slices.divisor);
    slice = static_cast<int>(all_slices - image * static_cast<int>(problem.slices.divisor));
  }

  // So many places further on.
  template <typename Element>
  __device__ Position position(const Arguments<Element>& problem, int place) const {
    const int across = column + place;
    const int down = problem.pitch.quotient_of_any(across);
    const int line = row + down;
    const int further = problem.rows.quotient_of_any(line);
    const int images = problem.slices.quotient_of_any(slice + further);
    const int own = slice + further - images * static_cast<int>(problem.slices.divisor);
    const int strip = problem.output_depth.quotient_of_any(own);
    return {images, strip, own - strip * static_cast<int>(problem.output_depth.divisor),
            line - further * static_cast<int>(problem.rows.divisor),
            across - down * static_cast<int>(problem.pitch.divisor)};
  }
};

// The tile, the group and the block of filters of a number: those of a tile follow each other, so that it
// comes from the cache after the first.
struct Share {
  long long tile;
  int group, filter_block;

  template <typename Element>
  __device__ Share(const Arguments<Element>& problem, long long work) {
    const int of_tile = problem.group_count * problem.filter_blocks;
    tile = work / of_tile;
    const int own = static_cast<int>(work - tile * of_tile);
    group = own / problem.filter_blocks;
    filter_block = own - group * problem.filter_blocks;
  }

  // Of all rows of all blocks, the number of this one's first.
  template <typename Element>
  __device__ int first_row(const Arguments<Element>& problem) const {
    return (group * problem.filter_blocks + filter_block) * problem.row_sets * kRows;
  }
};

}  // namespace convswap::many_channels
