#pragma once

// What the plan of few_channels and its kernel agree on, and what the kernel is told; few_channels.cc
// explains the words.

#include "conv/host_device.h"
#include "cuda/epilogue/epilogue_params.h"
#include "cuda/primitives/fast_divisor.cuh"
#include "cuda/primitives/geometry.h"
#include "cuda/primitives/naive_conv.h"
#include "cuda/primitives/shared_offset.h"

namespace convswap::few_channels {

constexpr int kMostThreads = 512;   // of a multiprocessor: each has 128 registers
constexpr int kQuad = 4;            // neighbouring output columns that one thread computes together
constexpr int kQuadsPerUnit = 8;    // of each half of the tile: the work of a warp at a time, 64 pixels
constexpr int kFiltersPerTile = 8;  // columns of the tensor core's result
constexpr int kBundlesPerStep = 4;  // bundles of filter rows in one multiplication, one to a thread
// Results of 4 filters at 64 pixels on their way through shared memory.
constexpr int kStagedWords = 4 * 2 * kQuadsPerUnit * kQuad;  // of one warp

constexpr int kMostBundle = 4;
CONVSWAP_HOST_DEVICE constexpr int staged_line_words(int bundle) { return 2 * bundle + 4; }

// A bundle of filter rows: where its pixels lie, and its weights.
struct FilterBundle {
  int offset;              // of the first tap, in words from a pixel's staged column
  int taps;                // 0 for a bundle that only fills the last step
  int row[kMostBundle];    // of the folded filter; -1 where there is none
  int start[kMostBundle];  // of its first tap within one filter
};

// Where a quad of output columns lies, the same in every tile and in both of its halves.
struct alignas(8) QuadPlace {
  unsigned short word;    // of its first column in the staged input
  unsigned short column;  // quads from the left edge of the tile
  int offset;             // of its first output, from the first of the half and of filter 0
};

// What turns a filter's sums into results.
struct FilterScale {
  float factor, bias;
};

// What the warps of a block are to know of a staged tile.
struct TileWork {
  long long start;      // in y, of the tile's first pixel of the block's first filter
  int quads[2];         // how many of each half are inside the output
  int whole_quads[2];   // and of how many all folds are
  unsigned last_folds;  // which of eight filters are inside of the others, a bit for each
  int columns;          // what is left of an output row from the tile's left edge
};

// What a block's threads tell each other.
struct BlockState {
  TileWork work;
  unsigned most, least_less_one;  // of absolute values, as bits
  unsigned weight_windows;        // of binades that the weights need; ~0 if they are not finite
  unsigned is_far;                // whether a filter's factor alone is not enough
};

// The parts of a block's shared memory. The weights come first, which costs the kernel no register. (NVRTC
// would load an Offset that is always 0 from global memory.)
struct SharedOffsets {
  static CONVSWAP_HOST_DEVICE unsigned* weights(unsigned char* shared) {
    return reinterpret_cast<unsigned*>(shared);
  }
  Offset<unsigned> staged;       // the input, converted
  Offset<unsigned char> raw;     // the input of the next tile as it is, and a row of zeros
  Offset<float> results;         // on their way, a place for each warp
  Offset<unsigned> lines;        // where they come from and go
  Offset<FilterScale> scales;    // of the filters
  Offset<QuadPlace> places;      // of the quads
  Offset<FilterBundle> bundles;  // of filter rows
  Offset<int> tops;              // the filters' uppermost binades
  Offset<float> rests;           // what their factors leave
  Offset<BlockState> state;
};

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

  EpilogueParams following;
  NaiveConv definition;  // for data with infinities or NaN; behind what is always read
};

}  // namespace convswap::few_channels
