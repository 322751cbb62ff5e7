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
constexpr int kMmaN = 8;            // N of an mma: folded filters
constexpr int kBundlesPerStep = 4;  // bundles of filter rows in a k-step; lane l has bundle l % 4
// Staging buffer of one warp for the results of 4 folded filters at 64 pixels.
constexpr int kResultWordsPerWarp = 4 * 2 * kQuadsPerUnit * kQuad;

// Filters of a pixel that a lane has side by side if y is NHWC: two of each accumulator tile, up to 16 bytes.
CONVSWAP_HOST_DEVICE constexpr int nhwc_vector(int accumulator_tiles, int element_bytes) {
  const int most = 16 / element_bytes;
  return 2 * accumulator_tiles < most ? 2 * accumulator_tiles : most;
}

// Folded filter that is column `n` of accumulator tile `tile`. For NHWC, lanes 4i to 4i + 3 have four
// neighbouring vectors of filters, so that they store whole sectors.
template <bool kNhwc, int kAccumulatorTiles, typename Element>
CONVSWAP_HOST_DEVICE constexpr int filter_of_column(int tile, int n) {
  if (!kNhwc) return tile * kMmaN + n;
  constexpr int kVector = nhwc_vector(kAccumulatorTiles, sizeof(Element));
  return tile / (kVector / 2) * 4 * kVector + n / 2 * kVector + tile % (kVector / 2) * 2 + n % 2;
}

constexpr int kMaxBundle = 4;
CONVSWAP_HOST_DEVICE constexpr int staged_line_words(int bundle) { return 2 * bundle + 4; }

// A bundle of filter rows: the offset of its pixels and the offsets of its weights.
struct FilterBundle {
  int offset;             // of the first tap, in words from a pixel's staged column
  int taps;               // 0 for a bundle that pads the last k-step
  int row[kMaxBundle];    // rows of the folded filter; -1 for padding
  int start[kMaxBundle];  // offset of its first tap within one filter
};

// Offsets of a quad (kQuad neighbouring output columns), the same in every tile and in both halves of a tile.
struct alignas(8) QuadOffsets {
  unsigned short word;    // offset of its first column in the staged input
  unsigned short column;  // quads from the left edge of the tile
  int offset;             // of its first output in y, from the half's first output of filter 0
};

// Scale and bias of a folded filter's results.
struct FilterScale {
  float factor, bias;
};

// Extents of a staged tile, shared by the warps of a block.
struct TileInfo {
  long long start;          // index in y of the tile's first pixel of the block's first filter
  int quads[2];             // quads of each half inside the output
  int full_quads[2];        // quads of each half with all folds inside
  unsigned last_fold_mask;  // for the other quads: bit mask of the eight folded filters that are inside
  int columns;              // columns of the output from the tile's left edge on
};

// Shared-memory state of a block.
struct BlockState {
  TileInfo tile_info;
  unsigned max_bits, min_bits_less_one;  // absolute values, as bits
  unsigned weight_windows;               // binade windows that the weights need; ~0 if they are not finite
  unsigned needs_second_factor;          // one float32 cannot hold a filter's scale
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
  Offset<int> tops;              // exponents of the filters' highest binades
  Offset<float> second_factors;  // second factors of the filters' scales
  Offset<BlockState> state;
};

template <typename Element>
struct Arguments : Tensors<Element>, Geometry {
  // *Folds*: 1 << log2_folds neighbouring output rows count as one folded row. Each of them is computed by
  // its own folded filter, which is the filter shifted by the stride. The members below count folded filters
  // and folded rows.
  int log2_folds;
  int folded_filters;  // of a conv group
  int folded_filter_height, folded_stride_height, folded_rows;
  int first_channel;         // first channel of this pass, within the conv group
  int pass_channels;         // channels of this pass
  bool accumulates;          // adds to the results of earlier passes
  bool activates;            // last pass, with an activation
  long long input_elements;  // elements of x

  // Output tile of a block: `tile_images` whole images, or some rows and columns of one or two images. It has
  // two halves. The second starts `half_images` images or `half_rows` rows after the first, `half_offset`
  // elements of y.
  int tile_images, tile_rows;
  int half_images, half_rows, half_offset;
  int images_per_half, rows_per_half, quads_per_half_row;  // extents of a half
  int output_tiles;                                        // of all images
  FastDivisor row_tiles, column_tiles;                     // output tiles along the rows and columns of y
  FastDivisor quads_per_row, quads_per_image;

  // Raw input: a copy of the tile's unconverted input, by image, channel and, in tiles narrower than the
  // image, row. A *run* is input that is contiguous in x. Each run has a buffer of `run_elements` elements.
  int raw_rows;     // of one channel, padding included
  int raw_columns;  // input columns that the tile covers, padding included
  int runs, runs_per_plane, run_elements;
  FastDivisor runs_per_plane_divisor, channels_divisor;
  FastDivisor warps_per_run;  // warps that copy one run

  // Staged input, by image of a half, channel block, line and column. Each column holds a bundle of pixels of
  // the first half and one of the second. A channel block is `bundle_channels` channels. A line is the
  // columns of one row and one stride phase (remainder of the column by the stride). A bundle's pixels of one
  // channel are `row_step` rows apart.
  int bundle_channels, bundle_rows, row_step;
  int channel_blocks;  // of an image
  int stride_phases;
  int line_words, channel_block_words, part_words, raw_words, zero_words;
  int lines;  // of all images of a half
  FastDivisor columns, lines_per_channel_block, channel_blocks_divisor, stride_phases_divisor;

  int bundles;  // of filter rows
  int steps;    // k-steps of kBundlesPerStep bundles
  SharedOffsets shared;
  int filter_blocks;     // blocks of kMmaN * kAccumulatorTiles folded filters in one thread block
  int blocks_per_group;  // thread blocks that divide the filters of a conv group
  FastDivisor filter_block_divisor;
  bool copies_16_bytes;  // x is aligned to 16 bytes
  int store_width;       // outputs of one store: store_width() if y is aligned to it, else fewer
  // For NCHW, distances in y of the eight folded filters of a tile, in elements: from the first to each
  // other even-numbered one, from an even-numbered one to the next, and to the next accumulator tile's.
  unsigned even_filters[kMmaN / 2];
  unsigned odd_filter;
  long long next_filters;
  unsigned first_fold_mask;  // bit mask of the eight folded filters that are the first fold of their filter

  EpilogueParams epilogue_params;
  NaiveConv naive_conv;  // for data with infinities or NaN; last, since it is rarely read
};

}  // namespace convswap::few_channels
