#pragma once

// What a block works on: places of the outputs, and filters.

#include "cuda/many_channels/arguments.h"

namespace convswap::many_channels {

// A place of the outputs, or of a phase of the padded input: images and strips counted from those of the
// tile's first place.
struct Position {
  int image, strip, row, column;
};

// Where a tile begins: its first place. Places count through the rows of a strip, the strips of an image and
// the images.
struct TileStart {
  long long image;
  int strip, row, column;

  template <typename Element>
  __device__ TileStart(const Arguments<Element>& problem, long long tile) {
    const long long place = tile * problem.columns;
    const long long line = place / static_cast<int>(problem.pitch.divisor);
    column = static_cast<int>(place - line * static_cast<int>(problem.pitch.divisor));
    const long long all_strips = line / static_cast<int>(problem.rows.divisor);
    row = static_cast<int>(line - all_strips * static_cast<int>(problem.rows.divisor));
    image = all_strips / problem.strips;
    strip = static_cast<int>(all_strips - image * problem.strips);
  }

  // So many places further on.
  template <typename Element>
  __device__ Position position(const Arguments<Element>& problem, int place) const {
    const int across = column + place;
    const int down = problem.pitch.quotient_of_any(across);
    const int line = row + down;
    const int further = problem.rows.quotient_of_any(line);
    const int all_strips = strip + further;
    const int images = problem.strip_divisor.quotient_of_any(all_strips);
    return {images, all_strips - images * problem.strips,
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
