#pragma once

// What the plan of depthwise and its kernel agree on, and what the kernel is told; depthwise.cc explains the
// words.

#include "conv/host_device.h"
#include "cuda/epilogue/epilogue_params.h"
#include "cuda/primitives/fast_divisor.cuh"
#include "cuda/primitives/geometry.h"

namespace convswap::depthwise {

constexpr int kMostThreads = 256;

// Columns of the image that are loaded together.
constexpr int kMostTogether = 4;

// The parts of a block's shared memory: places of planes in x, then the window, filters, biases.
CONVSWAP_HOST_DEVICE constexpr int source_words(int window_planes) { return (2 * window_planes + 3) / 4 * 4; }

template <typename T>
struct Arguments : Tensors<T>, Geometry {
  EpilogueParams following;

  // A plane is one depth of one filter's output for one image. It needs `filter_depth` planes of x.
  int planes;
  FastDivisor output_depth, image_filters, multiplier;
  int filter_depth, input_depth, stride_depth, dilation_depth, pad_depth;
  FastDivisor depth_taps, taps;  // of a filter: in depth, of all axes
  bool is_flat;  // a plane of the output needs the plane of x of the same number, whose rows are aligned

  // A block computes so many rows and columns of some planes.
  int block_planes;
  int tile_rows, tile_columns;
  FastDivisor tiles_across, tiles_down;

  // The window: the part of a plane of x that these need, with zeros beyond the image, as float32. A row is
  // loaded `together` columns at a time, from the first that is a multiple of them; a thread loads the same
  // columns of every `lines_together`th row.
  int together;
  FastDivisor window_rows, window_columns, window_loads;
  int window_left;  // columns before the first that is needed
  int lines_together;
  int next_row, next_in_window, next_in_x;  // from a thread's line to its next
  int beyond_in_window, beyond_in_x;        // and so much more where that is in another plane
  int window_pitch, window_plane, window_words;

  // A strip is what a thread computes: an output, and so on `strip_steps` times, down or along the row.
  FastDivisor strips_across, strip_planes;
  int strips, strip_steps, step_columns;
};

}  // namespace convswap::depthwise
