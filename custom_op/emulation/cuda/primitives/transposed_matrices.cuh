#pragma once

#include "cuda/primitives/shared_memory.cuh"
#include "cuda_emulation.h"

namespace convswap {

// The address of each lane's row of a matrix, visible to the whole warp.
inline SharedAddress matrix_rows[emulation::kMaxFibers];

inline unsigned short& element_of_matrix(int matrix, int row, int column) {
  const SharedAddress address =
      matrix_rows[emulation::current / 32 * 32 + matrix * 8 + row] + static_cast<unsigned>(column) * 2;
  return *reinterpret_cast<unsigned short*>(address);
}

inline void publish_matrix_row(SharedAddress row) {
  if (row % 16 != 0) emulation::fail("a misaligned row of a matrix");
  matrix_rows[emulation::current] = row;
  emulation::sync_warp();
}

inline void load_transposed_matrices(unsigned (&words)[4], SharedAddress row) {
  publish_matrix_row(row);
  const int lane = emulation::lane();
  for (int matrix = 0; matrix < 4; ++matrix) {
    words[matrix] = element_of_matrix(matrix, lane % 4 * 2, lane / 4) |
                    unsigned{element_of_matrix(matrix, lane % 4 * 2 + 1, lane / 4)} << 16;
  }
  emulation::sync_warp();
}

inline void store_transposed_matrices(SharedAddress row, const unsigned (&words)[4]) {
  publish_matrix_row(row);
  const int lane = emulation::lane();
  for (int matrix = 0; matrix < 4; ++matrix) {
    for (int half = 0; half < 2; ++half) {
      element_of_matrix(matrix, lane % 4 * 2 + half, lane / 4) =
          static_cast<unsigned short>(words[matrix] >> 16 * half);
    }
  }
  emulation::sync_warp();
}

}  // namespace convswap
