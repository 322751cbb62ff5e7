#pragma once

// What the kernel of few_channels and its planner both know of the work and of shared memory.

#include "conv/anywhere.h"
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
CONVSWAP_ANYWHERE constexpr int staged_line_words(int bundle) { return 2 * bundle + 4; }

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
  static CONVSWAP_ANYWHERE unsigned* weights(unsigned char* shared) {
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

}  // namespace convswap::few_channels
