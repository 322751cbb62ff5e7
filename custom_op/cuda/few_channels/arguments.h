#pragma once

// What the kernel of few_channels is told.

#include "cuda/epilogue/following.h"
#include "cuda/few_channels/layout.h"
#include "cuda/primitives/fast_divisor.cuh"
#include "cuda/primitives/geometry.h"
#include "cuda/primitives/naive_conv.h"

namespace convswap::few_channels {

template <typename Element>
struct Arguments : Tensors<Element>, Geometry {
  // Neighbouring output rows are folded into one: each is a filter of its own, the filter shifted by the
  // stride. What follows counts folded filters and rows; `log2_folds` says how many there are.
  int log2_folds;
  int folded_filters;  // of a group
  int folded_filter_height, folded_stride_height, folded_rows;
  int first_channel;         // of this pass, within the group
  int pass_channels;         // of this pass
  bool accumulates;          // onto the sums of the passes before it
  bool activates;            // it is the last pass, and an activation follows
  long long input_elements;  // of x

  // The tile of a block: `tile_images` whole images, or a band of rows and columns of one or two. Its second
  // half lies `half_images` images or `half_rows` rows further on, `half_offset` elements of y.
  int tile_images, tile_rows;
  int half_images, half_rows, half_offset;
  int places_images, places_rows, places_quads;  // of a half: images, rows, quads per row
  int tiles;                                     // of all images
  FastDivisor bands, column_tiles;               // tiles that cover the output's rows and columns
  FastDivisor quads_per_row, quads_per_image;

  // The copy of the tile's input as it comes: image, channel, and in tiles narrower than the image row. What
  // lies side by side in x is copied at once, a run, into `run_elements` elements.
  int raw_rows;     // of one channel, whether inside the image or not
  int raw_columns;  // input columns that the tile covers, padding included
  int runs, runs_per_plane, run_elements;
  FastDivisor runs_per_plane_divisor, channels_divisor;
  FastDivisor copy_sharers;  // warps that copy a run together

  // The staged input: image of a half, plane, line, column, and at each column a bundle of pixels of the
  // first half beside one of the second. A plane is `bundle_channels` channels, a line one row and column
  // remainder; the other pixels of a bundle come from rows `row_step` further down.
  int bundle_channels, bundle_rows, row_step;
  int planes;  // per image
  int phases;
  int line_words, plane_words, part_words, raw_words, zero_words;
  int lines;  // of all images of a half
  FastDivisor columns, lines_per_plane, planes_divisor, phases_divisor;

  int bundles;  // of filter rows
  int steps;    // of kBundlesPerStep bundles
  SharedOffsets shared;
  int filter_blocks;  // of kFiltersPerTile * kTiles filters, in one block
  int filter_splits;  // blocks of the grid that share the filters of a group
  FastDivisor filter_block_divisor;
  bool copies_16_bytes;  // x is aligned to them
  int store_width;       // neighbouring outputs, always of one row and aligned in y: 1, 2 or 4
  // Of eight filters as the tensor core takes them, in elements of y: from the first to each other one of
  // even number, from one of even number to the next of odd, and to the next eight.
  unsigned even_filters[kFiltersPerTile / 2];
  unsigned odd_filter;
  long long next_filters;
  unsigned first_folds;  // which of the eight are the first of their output rows, a bit for each

  Following following;
  Definition definition;  // for data with infinities or NaN; behind what is always read
};

}  // namespace convswap::few_channels
