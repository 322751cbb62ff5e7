#pragma once

// What the kernels of `many_channels` are told; many_channels.cc explains the words. tiling.cc decides,
// plan.cc fills in.

#include "cuda/epilogue/following.h"
#include "cuda/many_channels/layout.h"
#include "cuda/primitives/fast_divisor.cuh"
#include "cuda/primitives/geometry.h"
#include "cuda/primitives/naive_conv.h"

namespace convswap::many_channels {

template <typename Element>
struct Arguments : Tensors<Element>, Geometry {
  // Prepared by the first kernel for the second: of a band's tiles, groups and chunks the pixels, of all
  // rows, also of those without a filter, the weights.
  unsigned char* prepared_pixels;
  PixelRange* pixel_ranges;
  // Of splits the sums of each, of all of y, for the third kernel.
  float* partial_sums;
  long long results;      // elements of y
  int* prepared_outputs;  // of the columns of a tile: where their results lie in a plane of its first image
  unsigned char* prepared_weights;
  FilterRange* filter_ranges;

  int first_tile;     // of the band
  int weight_blocks;  // of the first kernel, which prepare weights; the others take chunks of tiles
  int shares;         // that the chunks of a tile and a group make for the first kernel
  int groups;
  int parts;                   // of a prepared tile: so many tiles of blocks
  int chunks, chunk_channels;  // of the channels of a group, once for each tap of the depth
  int steps;                   // of a chunk
  int group_steps;             // whose weights come as one copy, the last of a chunk perhaps of fewer
  int columns;                 // of a tile
  int strip_columns;           // of the output, that a strip has
  FastDivisor slices;          // of an image: strips times output planes
  FastDivisor output_depth;    // output planes
  FastDivisor pitch, rows;     // places from row to row, and rows from slice to slice
  FastDivisor depth_taps;      // a chunk is of some channels and one of these
  int input_depth, stride_depth, dilation_depth, pad_depth;
  FastDivisor bundle_places;                   // in all phases
  FastDivisor span;                            // places of a phase of a bundle
  FastDivisor prepared_places, prepared_span;  // the same of a prepared tile
  FastDivisor column_phases;                   // of those of rows, each
  int works_of_block;                          // at least; so many blocks have one more
  int longer_blocks;
  FastDivisor works_of_tile;    // parts times groups times blocks of filters
  FastDivisor works_of_part;    // groups times blocks of filters times splits
  FastDivisor splits;           // of the chunks of a tile, each a work of its own
  FastDivisor blocks_of_group;  // of filters

  unsigned channel_bytes;  // from channel to channel of the input
  int image_stages, weight_stages;
  int image_stage_bytes, weight_stage_bytes;
  int prepared_bytes;                       // of a chunk of a prepared tile
  int pieces, piece_bytes, piece_distance;  // of what of it a block copies, and how far apart they lie
  SharedOffsets shared;
  // The first row and column of the padded input that a phase has.
  int phase_rows[kMostPhases], phase_columns[kMostPhases];
  // How far a step's first bundle lies from the place of an output. Steps go over the taps of two bundles,
  // then of the next two.
  unsigned short step_places[kMostSteps];

  Following following;
  Definition definition;  // for data with infinities or NaN; behind what is always read
};

}  // namespace convswap::many_channels
