#pragma once

// Where a block of the kernel of depthwise stands, and the parts of its shared memory.

#include "cuda/depthwise/arguments.h"
#include "cuda/depthwise/layout.h"

namespace convswap::depthwise {

// Where a block stands: its first plane, row and column of the output.
struct Tile {
  int plane, row, column;

  template <typename T>
  __device__ explicit Tile(const Arguments<T>& a) {
    const unsigned line = a.tiles_across.quotient_of_any(blockIdx.x);
    column = static_cast<int>(blockIdx.x - line * a.tiles_across.divisor) * a.tile_columns;
    const unsigned group = a.tiles_down.quotient_of_any(line);
    row = static_cast<int>(line - group * a.tiles_down.divisor) * a.tile_rows;
    plane = static_cast<int>(group) * a.block_planes;
  }
};

// The parts of shared memory.
struct BlockMemory {
  long long* sources;  // where each plane of the window begins in x; -1 where it is all padding
  float* window;
  float* weights;  // of the filter of each plane
  float* bias;     // one of each plane

  template <typename T>
  __device__ BlockMemory(const Arguments<T>& a, float* shared) {
    sources = reinterpret_cast<long long*>(shared);
    window = shared + source_words(a.block_planes * a.filter_depth);
    weights = window + a.window_words;
    bias = weights + a.block_planes * static_cast<int>(a.taps.divisor);
  }
};

// Of a plane of the output: its image, filter and depth.
struct PlaneNumbers {
  int image, filter, depth;

  template <typename T>
  __device__ PlaneNumbers(const Arguments<T>& a, int plane) {
    const int row = static_cast<int>(a.output_depth.quotient_of_any(plane));
    depth = plane - row * static_cast<int>(a.output_depth.divisor);
    image = static_cast<int>(a.image_filters.quotient_of_any(row));
    filter = row - image * static_cast<int>(a.image_filters.divisor);
  }
};

}  // namespace convswap::depthwise
