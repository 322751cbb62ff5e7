#pragma once

// Where a lane of the kernel of sliding_rows stands.

#include "cuda/sliding_rows/arguments.h"
#include "cuda/sliding_rows/slide.h"

namespace convswap::sliding_rows {

template <typename S>
struct Lane {
  int lane, place;  // of the warp; among the lanes of its row
  int plane;
  int first_row, rows;       // of the output
  int column, piece_column;  // the first of the lane's, of the output and of x
  bool writes;

  // All warps of a block have the same segment and strip, so that the compiler knows that no branch which
  // depends on these parts the lanes of a warp.
  template <typename T>
  __device__ explicit Lane(const Arguments<T>& a) {
    const int segments = static_cast<int>(a.segments.divisor), lanes = static_cast<int>(a.lanes.divisor);
    const int line = static_cast<int>(a.segments.quotient_of_any(blockIdx.x));
    const int segment = static_cast<int>(blockIdx.x) - line * segments;
    const int block = static_cast<int>(a.strips.quotient_of_any(line));
    first_row = (line - block * static_cast<int>(a.strips.divisor)) * a.strip_rows;
    rows = min(a.strip_rows, a.output_height - first_row);

    lane = static_cast<int>(threadIdx.x) % kWarp;
    const int row = static_cast<int>(a.lanes.quotient(lane));
    place = lane - row * lanes;
    const int warp = block * kBlockWarps + static_cast<int>(threadIdx.x) / kWarp;
    plane = warp * a.warp_planes + row;
    const int piece = segment * a.segment_pieces + place;
    column = piece * S::outputs;
    piece_column = piece * S::piece;

    const bool is_there = row < a.warp_planes && plane < a.planes;
    const bool knows_left = segment == 0 || place >= lanes_beyond(S::left, S::piece);
    const bool knows_right = segment + 1 == segments || place + lanes_beyond(S::right, S::piece) < lanes;
    writes = is_there && knows_left && knows_right && column < a.output_width;
    // A lane without a plane takes part where the warp's lanes exchange columns, of zeros beyond an image.
    if (!is_there) plane = 0, piece_column = a.input_width;
  }
};

}  // namespace convswap::sliding_rows
