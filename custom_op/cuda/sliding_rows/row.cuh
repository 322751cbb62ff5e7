#pragma once

// A row of x as a lane needs it: its own piece between columns that its neighbours in the warp have.

#include "cuda/sliding_rows/lane.cuh"

namespace convswap::sliding_rows {

template <typename S>
struct Row {
  float columns[S::needed];

  // All lanes of the warp at once. `lanes`: of a row.
  template <typename Piece>
  __device__ Row(const Piece& piece, const Lane<S>& at, int lanes) {
#pragma unroll
    for (int i = 0; i < S::piece; ++i) columns[S::left + i] = piece.column(i);
#pragma unroll
    for (int i = 1; i <= S::left; ++i) {  // columns before the piece's first
      const int away = lanes_beyond(i, S::piece);
      const float theirs = columns[S::left + away * S::piece - i];
      const float column = __shfl_sync(~0u, theirs, (at.lane - away) & (kWarp - 1));
      columns[S::left - i] = at.place >= away ? column : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < S::right; ++i) {
      const int away = lanes_beyond(i + 1, S::piece);
      const float theirs = columns[S::left + i - (away - 1) * S::piece];
      const float column = __shfl_sync(~0u, theirs, (at.lane + away) & (kWarp - 1));
      columns[S::left + S::piece + i] = at.place + away < lanes ? column : 0.0f;
    }
  }
};

}  // namespace convswap::sliding_rows
