#pragma once

// What the kernel of `implicit_gemm` is told; implicit_gemm.cc explains the words. tiling.cc decides,
// plan.cc fills in.

#include "cuda/implicit_gemm/layout.h"
#include "cuda/primitives/fast_divisor.cuh"
#include "cuda/primitives/geometry.h"
#include "cuda/primitives/naive_conv.h"

namespace convswap::implicit_gemm {

template <typename Element>
struct Arguments : Tensors<Element>, Geometry {
  int y_misalignment;                // elements from a boundary of kAlignment to y
  long long input_elements;          // of x
  int block_filters, filter_blocks;  // filters of a block, and blocks of a group
  FastDivisor dilation_height_divisor, dilation_width_divisor;
  FastDivisor input_width_divisor;

  int folds;
  int chunks;       // of channels
  int half_chunk;   // the one of which a place has two pixels; -1 for none
  bool pairs_rows;  // these lie below each other, not side by side
  FastDivisor row_phases, column_phases;
  FastDivisor pitch;
  int plane_places, plane_rows;
  int bundle_places, part_places, slot_places;
  int steps, steps_held;
  int turn_ends;  // the step before which the other warpgroup may begin
  int output_chunks;
  int first_ragged;  // of them, that has columns of the last rows, where some folds have no row
  int stages, stage_bytes;
  int buffers, buffer_bytes, results_bytes;
  int late_filters;   // of a block, whose results have a second place where there is one buffer
  int late_bytes;     // from their first place to the second
  bool writes_pairs;  // of neighbouring results, where an image's first is aligned to two
  bool leaves_first;  // y leaves the cache before all other data
  SharedOffsets shared;
  RowOwner rows[kRows];
  HalfStep half_steps[2 * kMostSteps];
  // Of the first half, and in the upper half the distance of the second. Two steps are one load, where they
  // are aligned so.
  alignas(8) unsigned step_places[kMostSteps];

  Definition definition;  // for data with infinities or NaN; behind what is always read
};

}  // namespace convswap::implicit_gemm
