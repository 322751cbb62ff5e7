#pragma once

// Arguments of the layer normalisation kernel.

#include "cuda/primitives/geometry.h"

namespace convswap::layer_norm {

// A vector is 16 bytes of a row. A lane holds some vectors of a row, at most this many.
constexpr int kMaxVectors = 8;
// The kernel's instances by the vectors that a lane holds; 0 for rows of other lengths.
constexpr int kInstances[] = {1, 2, 3, 4, 5, 6, 7, kMaxVectors, 0};
constexpr int kThreads = 128;  // of a block
// Per multiprocessor, for enough loads in flight.
constexpr int kMinBlocks = 3;

template <typename T>
struct Arguments : Tensors<T> {  // x and y; w is the scale, and b the bias or null; z is null
  long long rows;
  long long length;  // elements of a row
  float epsilon;
  int team;         // lanes that normalise a row, a power of two
  int warp_rows;    // teams of a warp
  int row_vectors;  // vectors of a row; 0 if its elements are loaded one by one
};

}  // namespace convswap::layer_norm
