#pragma once

#include "cuda/primitives/shared_offset.h"

namespace convswap {

// Pointer to a part of the block's dynamic shared memory. It is computed at each use: a register costs more
// than an addition.
template <typename Part>
__device__ inline Part* shared_memory_at(Offset<Part> offset) {
  extern __shared__ __align__(128) unsigned char shared[];
  return offset.in(shared);
}

}  // namespace convswap
