#pragma once

// Kernel arguments of few_channels and the constants and shared-memory structs that the host and the kernel
// share. few_channels.cc defines the terms.

#include "conv/host_device.h"
#include "cuda/epilogue/epilogue_params.h"
#include "cuda/primitives/fast_divisor.cuh"
#include "cuda/primitives/geometry.h"
#include "cuda/primitives/naive_conv.h"
#include "cuda/primitives/shared_offset.h"

namespace convswap::few_channels {

constexpr int kMaxThreads = 512;    // threads of a multiprocessor, at 128 registers each
constexpr int kQuad = 4;            // neighbouring output columns of one thread
constexpr int kQuadsPerUnit = 8;    // quads of each half of the tile in a warp's unit of work, 64 pixels
constexpr int kFiltersPerTile = 8;  // N of the mma
constexpr int kBundlesPerStep = 4;  // bundles of filter rows in one k-step, one per thread of a quad of lanes
// Staging buffer of one warp for the results of 4 filters at 64 pixels.
constexpr int kResultWordsPerWarp = 4 * 2 * kQuadsPerUnit * kQuad;

constexpr int kMaxBundle = 4;
CONVSWAP_HOST_DEVICE constexpr int staged_line_words(int bundle) { return 2 * bundle + 4; }

// A bundle of filter rows: the offset of its pixels and the position of its weights.
struct FilterBundle {
  int offset;             // of the first tap, in words from a pixel's staged column
  int taps;               // 0 for a bundle that pads the last k-step
  int row[kMaxBundle];    // rows of the folded filter; -1 for padding
  int start[kMaxBundle];  // offset of its first tap within one filter
};

// Offsets of a quad of output columns, the same in every tile and in both halves of a tile.
struct alignas(8) QuadOffsets {
  unsigned short word;    // offset of its first column in the staged input
  unsigned short column;  // quads from the left edge of the tile
  int offset;             // of its first output in y, from the half's first output of filter 0
};

// Scale and bias that turn a filter's accumulators into results.
struct FilterScale {
  float factor, bias;
};

// Extents of a staged tile, shared by the warps of a block.
struct TileInfo {
  long long start;          // index in y of the tile's first pixel of the block's first filter
  int quads[2];             // quads of each half inside the output
  int full_quads[2];        // quads of each half with all folds inside
  unsigned last_fold_mask;  // for the other quads: bit mask of the eight filters that are inside
  int columns;              // columns of the output from the tile's left edge on
};

// Shared-memory state of a block.
struct BlockState {
  TileInfo tile_info;
  unsigned max_bits, min_bits_less_one;  // absolute values, as bits
  unsigned weight_windows;       // windows of binades that the weights need; ~0 if they are not finite
  unsigned needs_second_factor;  // one float32 cannot hold a filter's scale
};

// Offsets of the regions of a block's shared memory. The weights come first: an offset of 0 costs the kernel
// no register. (NVRTC would load an Offset that is always 0 from global memory.)
struct SharedOffsets {
  static CONVSWAP_HOST_DEVICE unsigned* weights(unsigned char* shared) {
    return reinterpret_cast<unsigned*>(shared);
  }
  Offset<unsigned> staged;    // the converted input
  Offset<unsigned char> raw;  // the unconverted input of the next tile, and a row of zeros
  Offset<float> results;      // staging buffers for stores, one per warp
  Offset<unsigned> lines;     // source and target offsets of the staged lines
  Offset<FilterScale> scales;
  Offset<QuadOffsets> quad_offsets;
  Offset<FilterBundle> bundles;  // of filter rows
  Offset<int> tops;              // exponents of the filters' uppermost binades
  Offset<float> second_factors;  // second factors of the filters' scales
  Offset<BlockState> state;
};

template <typename Element>
struct Arguments : Tensors<Element>, Geometry {
  // Neighbouring output rows are folded into one: each becomes a filter of its own, the filter shifted by the
  // stride. The members below count folded filters and rows; there are 1 << log2_folds folds.
  int log2_folds;
  int folded_filters;  // of a group
  int folded_filter_height, folded_stride_height, folded_rows;
  int first_channel;         // first channel of this pass, within the group
  int pass_channels;         // channels of this pass
  bool accumulates;          // adds to the results of earlier passes
  bool activates;            // last pass, with an activation
  long long input_elements;  // elements of x

  // Tile of a block: `tile_images` whole images, or a band of rows and columns of one or two images. The
  // second half starts `half_images` images or `half_rows` rows after the first, `half_offset` elements of y.
  int tile_images, tile_rows;
  int half_images, half_rows, half_offset;
  int images_per_half, rows_per_half, quads_per_half_row;  // extents of a half
  int tiles;                                               // of all images
  FastDivisor bands, column_tiles;                         // tiles along the output's rows and columns
  FastDivisor quads_per_row, quads_per_image;

  // Copy of the tile's unconverted input, by image, channel and, in tiles narrower than the image, row. A run
  // is input that is contiguous in x; one run is copied at a time, to `run_elements` elements.
  int raw_rows;     // of one channel, whether inside the image or not
  int raw_columns;  // input columns that the tile covers, padding included
  int runs, runs_per_plane, run_elements;
  FastDivisor runs_per_plane_divisor, channels_divisor;
  FastDivisor warps_per_run;  // warps that copy one run

  // Staged input, by image of a half, plane, line and column; each column holds a bundle of pixels of the
  // first half and one of the second. A plane is `bundle_channels` channels. A line is one row and one
  // remainder of the columns by the stride. The further pixels of a bundle come from rows `row_step` apart.
  int bundle_channels, bundle_rows, row_step;
  int planes;  // per image
  int phases;
  int line_words, plane_words, part_words, raw_words, zero_words;
  int lines;  // of all images of a half
  FastDivisor columns, lines_per_plane, planes_divisor, phases_divisor;

  int bundles;  // of filter rows
  int steps;    // k-steps of kBundlesPerStep bundles
  SharedOffsets shared;
  int filter_blocks;  // blocks of kFiltersPerTile * kTiles filters in one thread block
  int filter_splits;  // thread blocks that divide the filters of a group
  FastDivisor filter_block_divisor;
  bool copies_16_bytes;  // x is aligned to 16 bytes
  int store_width;       // neighbouring outputs per store, always in one row and aligned in y: 1, 2 or 4
  // Offsets between eight filters in the order of the mma's columns, in elements of y: from the first to each
  // other even-numbered filter, from an even-numbered filter to the next, and to the next eight.
  unsigned even_filters[kFiltersPerTile / 2];
  unsigned odd_filter;
  long long next_filters;
  unsigned first_fold_mask;  // bit mask of the eight filters that are the first fold of their filter

  EpilogueParams epilogue_params;
  NaiveConv naive_conv;  // for data with infinities or NaN; last, since it is rarely read
};

}  // namespace convswap::few_channels
