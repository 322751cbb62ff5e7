#pragma once

#include "cuda/primitives/shared_memory.cuh"

namespace convswap {

// Loads 8x8 matrices of 16-bit numbers from shared memory into a warp's registers (`ldmatrix`), as operands
// of mma_m16n8k16. Lane 8 i + r passes the address of row r of matrix i, which has 16 bytes. Lane l receives
// the 32-bit word l % 4 of row l / 4 of each matrix. Eight rows in 128 contiguous bytes have no bank
// conflicts.
__device__ inline void ldmatrix(unsigned (&matrices)[4], SharedAddress row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(matrices[0]), "=r"(matrices[1]), "=r"(matrices[2]), "=r"(matrices[3])
               : "r"(row)
               : "memory");
}

// Two matrices. The addresses of lanes 0 to 15 count.
__device__ inline void ldmatrix(unsigned (&matrices)[2], SharedAddress row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
               : "=r"(matrices[0]), "=r"(matrices[1])
               : "r"(row)
               : "memory");
}

}  // namespace convswap
