#pragma once

#include "cuda/primitives/mbarrier.h"
#include "cuda/primitives/shared_memory.cuh"
#include "cuda/primitives/tensor_map.h"

namespace convswap {

// TMA copies of boxes of five-dimensional tensors (`cp.async.bulk.tensor`), compute capability 9.0 and newer.
// The map has the box and the swizzle. Elements outside the tensor are zeros in shared memory and are not
// written to global memory.

// First element of a box, innermost dimension first.
struct TensorCoordinates {
  int channel, column, row, depth, image;
};

// Issues a load of the whole box. Its bytes were announced to the barrier. `shared` is a multiple of 1,024.
__device__ inline void tma_load_tensor(void* shared, const TensorMap& map, TensorCoordinates at,
                                       TmaMbarrier* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, "
      "%5, %6}], [%7];" ::"r"(shared_address(shared)),
      "l"(&map), "r"(at.channel), "r"(at.column), "r"(at.row), "r"(at.depth), "r"(at.image),
      "r"(shared_address(barrier))
      : "memory");
}

// Issues a store of a box. tma.cuh has the commit and the wait for stores.
__device__ inline void tma_store_tensor(const void* shared, const TensorMap& map, TensorCoordinates at) {
  asm volatile(
      "cp.async.bulk.tensor.5d.global.shared::cta.bulk_group [%1, {%2, %3, %4, %5, %6}], [%0];" ::"r"(
          shared_address(shared)),
      "l"(&map), "r"(at.channel), "r"(at.column), "r"(at.row), "r"(at.depth), "r"(at.image)
      : "memory");
}

}  // namespace convswap
