#pragma once

// What the kernel of sliding_rows is told; see sliding_rows.cc.

#include "cuda/epilogue/following.h"
#include "cuda/primitives/fast_divisor.cuh"
#include "cuda/primitives/geometry.h"

namespace convswap::sliding_rows {

template <typename T>
struct Arguments : Tensors<T> {
  Following following;

  int input_height, input_width, output_height, output_width, pad_height;
  int planes;                             // of the output, one for each filter of each image
  FastDivisor image_filters, multiplier;  // filters of an image, of a channel
  bool loads_together;                    // columns that the instance loads together are aligned
  bool stores_together;                   // so are the outputs of a lane, and all of them are in the image

  // A lane has a piece of a row. The pieces of a row are side by side in a warp, as many planes as there is
  // room for. Of a row with more pieces than a warp has lanes each segment has a warp, and the ends of
  // segments overlap: their lanes are there for their neighbours.
  FastDivisor lanes;  // of a row
  int warp_planes;
  FastDivisor segments;
  int segment_pieces;  // from the first of a segment to that of the next

  FastDivisor strips;  // of a plane, one below the other
  int strip_rows;      // of the output
};

}  // namespace convswap::sliding_rows
