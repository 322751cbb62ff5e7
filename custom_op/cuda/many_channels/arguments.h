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
  int works_of_block;               // at least; so many blocks have one more
  int longer_blocks;
  FastDivisor works_of_tile;    // groups times blocks of filters
  FastDivisor blocks_of_group;  // of filters

  long long chunk_bytes;  // from chunk to chunk of channels
  long long x_bytes;
  RunKind run_kind;
  FastDivisor phases_across;  // of the columns
  FastDivisor phases_down;    // of the rows
  int last_phase_row, last_phase_column;
  int run_bytes;             // that a run takes of a stage, with its gap; of slices, of a whole one
  int runs;                  // of a tile, at most
  int channel_shift;         // binary logarithm of the channels that each warp of converters has copied
  unsigned channel_bytes;    // from channel to channel, in memory
  int staged_channel_bytes;  // and in a stage
  int pixel_stages, image_stages, weight_stages;
  int pixel_stage_bytes, image_stage_bytes, weight_stage_bytes;
  SharedOffsets shared;
  // The first row and column of the padded input that a phase has.
  int phase_rows[kMostPhases], phase_columns[kMostPhases];
  // How far a step's first bundle lies from the place of an output. Steps go over the taps of two bundles,
  // then of the next two.
  unsigned short step_places[kMostSteps];

  Definition definition;  // for data with infinities or NaN; behind what is always read
};

}  // namespace convswap::many_channels
