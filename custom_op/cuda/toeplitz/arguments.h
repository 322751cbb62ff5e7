#pragma once

// What the kernel of `toeplitz` is told; toeplitz.cc explains the words. tiling.cc decides, plan.cuh fills in.

#include "cuda/naive.cuh"
#include "cuda/primitives/fast_divisor.cuh"
#include "cuda/toeplitz/layout.h"

namespace convswap::toeplitz {

template <typename Element>
struct Arguments {
  const Element* x;
  const Element* w;
  const Element* b;
  Element* y;
  int y_misalignment;  // elements from a boundary of 16 bytes to y
  NaiveArguments<Element> definition;

  long long input_elements;
  bool is_unpadded;  // no output reads beyond the image's columns, or above its rows
  int batch, in_channels, out_channels;
  int channels, filters;  // of a group
  int input_height, input_width, output_height, output_width;
  int input_plane, output_plane;
  int filter_height, filter_width, stride_height, stride_width, dilation_height, dilation_width;
  int pad_height, pad_width;

  // A core's row: `pixels` neighbours of `bundle` channels, whose product is `outputs` neighbours in y.
  int log2_bundle, log2_outputs;
  int folds, log2_folds;
  int window_rows;                 // that the outputs of a core's row read
  FastDivisor window_cores;        // that they read of each row and bundle of channels
  int row_cores;                   // of all bundles
  int row_steps;                   // multiplications along the depth for them
  int steps;                       // and for all rows
  FastDivisor row_phases, column_phases;
  unsigned short row_places[kMostRowSteps][2];  // of the two cores of a step of the window's first row

  // Staged cores of an image: for each bundle, row phase and column phase a plane of rows of `pitch`.
  int pitch;
  int plane_cores, image_cores, part_cores;
  FastDivisor cores_per_row, input_rows;  // of a tile, all phases together
  int image_items;                        // cores to stage of an image
  FastDivisor lines_per_channel;          // of the second-level cache, that a tile's rows span at most

  // A tile: so many images, rows of folds, and core rows along the width.
  int images, rows;
  FastDivisor cores;
  FastDivisor bands, column_tiles;
  int tiles;
  int product_rows;    // of an image: core rows of all its strips
  FastDivisor chunks;  // of kRows of them

  int filters_per_block, filter_blocks;
  ResultPlaces results;
  bool writes_pairs;  // of neighbouring results, where the first of a tile is aligned to two
  SharedOffsets shared;
};

}  // namespace convswap::toeplitz
