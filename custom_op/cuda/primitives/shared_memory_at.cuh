#pragma once

#include "cuda/primitives/shared_offset.h"

namespace convswap {

// A part of a block's shared memory, found each time: a register is worth more than an addition.
template <typename Part>
__device__ inline Part* shared_memory_at(Offset<Part> offset) {
  extern __shared__ __align__(128) unsigned char shared[];
  return offset.in(shared);
}

}  // namespace convswap
