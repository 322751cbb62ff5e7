#pragma once

// The kernel that changes a tensor's layout; see layout.cc.

#include "conv/small_floats.h"  // the element types of the instances' names
#include "cuda/layout/arguments.h"
#include "cuda/primitives/dependent_launch.cuh"
#include "cuda/primitives/shared_memory_at.cuh"

namespace convswap::layout {

// kCount neighbouring elements of one load or store.
template <typename T, int kCount>
struct alignas(sizeof(T) * kCount) Piece {
  T values[kCount];
};

template <typename T>
__device__ inline bool is_aligned_to_16(const T* pointer) {
  return reinterpret_cast<unsigned long long>(pointer) % 16 == 0;
}

// Loads a tile from the row-major matrix `from`, whose element (row, column) is the tile's first.
template <typename T, int kCount>
__device__ inline void load_tile(T* tile, const T* from, long long rows, long long columns, long long row,
                                 long long column) {
  using Shape = TileShape<sizeof(T)>;
  constexpr int kPieces = Shape::kExtent / kCount;
#pragma unroll
  for (int i = static_cast<int>(threadIdx.x); i < Shape::kExtent * kPieces; i += kThreads) {
    const int r = i / kPieces, c = i % kPieces * kCount;
    if (row + r >= rows || column + c >= columns) continue;
    const auto piece = *reinterpret_cast<const Piece<T, kCount>*>(from + (row + r) * columns + column + c);
#pragma unroll
    for (int j = 0; j < kCount; ++j) tile[r * Shape::kPitch + c + j] = piece.values[j];
  }
}

// Stores the transposed tile to the row-major matrix `to`, at the element (row, column). `rows` and `columns`
// are those of `to`.
template <typename T, int kCount>
__device__ inline void store_transposed(const T* tile, T* to, long long rows, long long columns,
                                        long long row, long long column) {
  using Shape = TileShape<sizeof(T)>;
  constexpr int kPieces = Shape::kExtent / kCount;
#pragma unroll
  for (int i = static_cast<int>(threadIdx.x); i < Shape::kExtent * kPieces; i += kThreads) {
    const int r = i / kPieces, c = i % kPieces * kCount;
    if (row + r >= rows || column + c >= columns) continue;
    Piece<T, kCount> piece;
#pragma unroll
    for (int j = 0; j < kCount; ++j) piece.values[j] = tile[(c + j) * Shape::kPitch + r];
    *reinterpret_cast<Piece<T, kCount>*>(to + (row + r) * columns + column + c) = piece;
  }
}

// A block transposes one tile at a time. Loads and stores of 16 bytes take matrices whose rows all begin at a
// multiple of 16 bytes.
template <typename T>
__global__ void kernel(const Arguments<T> problem) {
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  using Shape = TileShape<sizeof(T)>;
  constexpr int kCount = 16 / sizeof(T);
  T* const tile = shared_memory_at(Offset<T>{});
  const bool loads_pieces = problem.columns % kCount == 0 && is_aligned_to_16(problem.x);
  const bool stores_pieces = problem.rows % kCount == 0 && is_aligned_to_16(problem.y);
  for (long long i = blockIdx.x; i < problem.tiles; i += gridDim.x) {
    const long long column = i % problem.column_tiles * Shape::kExtent;
    const long long of_rows = i / problem.column_tiles;
    const long long row = of_rows % problem.row_tiles * Shape::kExtent;
    const long long matrix = of_rows / problem.row_tiles * problem.rows * problem.columns;
    const T* const from = problem.x + matrix;
    T* const to = problem.y + matrix;
    if (loads_pieces) {
      load_tile<T, kCount>(tile, from, problem.rows, problem.columns, row, column);
    } else {
      load_tile<T, 1>(tile, from, problem.rows, problem.columns, row, column);
    }
    __syncthreads();
    if (stores_pieces) {
      store_transposed<T, kCount>(tile, to, problem.columns, problem.rows, column, row);
    } else {
      store_transposed<T, 1>(tile, to, problem.columns, problem.rows, column, row);
    }
    __syncthreads();
  }
}

}  // namespace convswap::layout
