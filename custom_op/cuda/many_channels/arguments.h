#pragma once

// What the kernels of `many_channels` are told; many_channels.cc explains the words. tiling.cc decides,
// plan.cc fills in.

#include "cuda/definition.h"
#include "cuda/geometry.h"
#include "cuda/many_channels/layout.h"
#include "cuda/primitives/fast_divisor.cuh"

namespace convswap::many_channels {

template <typename Element>
struct Arguments : Tensors<Element>, Geometry {
  // Prepared by the first kernel for the second.
  unsigned char* prepared_weights;
  FilterRange* filter_ranges;  // of all rows, also of those without a filter

  int group_count;
  int filter_blocks;           // of a group
  int row_sets;                // of 64 filters, of a block: 1 or 2
  int chunks, chunk_channels;  // of the channels of a group, once for each tap of the depth
  int steps;                   // of a chunk
  int group_steps;             // whose weights come as one copy, the last of a chunk perhaps of fewer
  int columns;                 // of the products of a block
  int strip_columns;           // of the output, that a strip has
  FastDivisor slices;          // of an image: strips times output planes
  FastDivisor output_depth;    // output planes
  FastDivisor pitch, rows;     // places from row to row, and rows from slice to slice
  FastDivisor depth_taps;      // a chunk is of some channels and one of these
  int input_depth, stride_depth, dilation_depth, pad_depth;
  FastDivisor bundle_places, span;  // places of a bundle, and of a phase
  long long works;                  // tiles of all images together, times blocks of filters, times groups
  int image_stages, weight_stages;
  int image_stage_bytes, weight_stage_bytes;
  SharedOffsets shared;
  // The first row and column of the padded input that a phase has.
  int phase_rows[kMostPhases], phase_columns[kMostPhases];
  // How far a step's first bundle lies from the place of an output. Steps go over the taps of two bundles,
  // then of the next two.
  unsigned short step_places[kMostSteps];

  Definition definition;  // for data with infinities or NaN; behind what is always read
};

}  // namespace convswap::many_channels
