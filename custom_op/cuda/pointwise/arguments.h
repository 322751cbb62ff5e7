#pragma once

// What the plan of pointwise and its kernel agree on, and what the kernel is told; pointwise.cc explains the
// words.

#include "cuda/epilogue/epilogue_params.h"
#include "cuda/primitives/fast_divisor.cuh"
#include "cuda/primitives/geometry.h"

namespace convswap::pointwise {

constexpr int kPixels = 64;                            // of a tile, and of a product: its rows
constexpr int kTileFilters = 8;                        // of a product's columns
constexpr int kDepthBytes = 32;                        // of a product: channels of a pixel, or of a filter
constexpr int kCoreBytes = 16;                         // neighbouring channels of a filter that lie together
constexpr int kSlotStepBytes = kPixels * kDepthBytes;  // of a slot: what a product takes of a tile

template <typename Element>
struct Arguments : Tensors<Element> {
  int channels, filters;  // of a group
  int in_channels, out_channels;
  int input_plane;
  // Pixels of the output count through the rows, planes and images.
  FastDivisor output_plane, output_area, output_width;
  unsigned pixels;
  int depth_step, row_step, column_step;  // in the input, from pixel to pixel of the output
  bool is_dense;                          // these are one pixel, so that one lies where its output does
  // Whether of every two pixels of a channel the inputs, and the outputs, are one load and one store.
  bool loads_pairs, stores_pairs;
  int tiles;                    // of pixels
  int chunks;                   // of the channels
  FastDivisor blocks_of_group;  // of filters
  EpilogueParams following;
};

}  // namespace convswap::pointwise
