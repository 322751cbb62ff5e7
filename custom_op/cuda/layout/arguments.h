#pragma once

// Arguments of the layout stage's kernel.

#include "cuda/primitives/geometry.h"
#include "cuda/primitives/shared_offset.h"

namespace convswap::layout {

constexpr int kThreads = 256;

// Rows and columns of a tile, and the distance between its rows in shared memory. The padding of each row is
// a word of 4 bytes, or one element of 8 bytes. A warp that reads a column then meets each bank twice at
// most.
template <int kElementBytes>
struct TileShape {
  static constexpr int kExtent = kElementBytes == 8 ? 32 : 64;
  static constexpr int kPitch = kExtent + (kElementBytes == 2 ? 2 : 1);
  static constexpr int kBytes = kExtent * kPitch * kElementBytes;
};

template <typename T>
struct Arguments : Tensors<T> {  // x and y; the others are null
  long long rows, columns;       // of the matrix of each image in x
  long long row_tiles, column_tiles;
  long long tiles;  // of all images
};

}  // namespace convswap::layout
