#pragma once

#include "cuda/primitives/shared_memory.cuh"

namespace convswap {

// Four 8x8 matrices of 16-bit numbers between shared memory and the registers of a warp, transposed
// (`ldmatrix.trans`, `stmatrix.trans`). Lane 8 i + r passes the address of row r of matrix i in shared
// memory, 16 bytes. Word i of lane l holds rows 2 (l % 4) and 2 (l % 4) + 1 of column l / 4 of matrix i. That
// is the layout of an accumulator tile (mma.cuh, wgmma.cuh) whose columns are the rows in shared memory.

__device__ inline void load_transposed_matrices(unsigned (&words)[4], SharedAddress row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(row)
               : "memory");
}

// Needs compute capability 9.0.
__device__ inline void store_transposed_matrices(SharedAddress row, const unsigned (&words)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row),
               "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3])
               : "memory");
}

}  // namespace convswap
