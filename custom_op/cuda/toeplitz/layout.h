#pragma once

// What the tiling of `toeplitz` and its kernel agree on; toeplitz.cc explains the words.

#include "conv/anywhere.h"
#include "cuda/primitives/mbarrier.h"
#include "cuda/primitives/shared_offset.h"

namespace convswap::toeplitz {

constexpr int kCoreElements = 8;  // numbers of a core's row, 16 bytes
constexpr int kDepth = 16;        // of one multiplication: two cores
constexpr int kRows = 64;         // of one multiplication
constexpr int kTileColumns = 8;   // of a tile of sums in a thread's registers
constexpr int kMostSteps = 256;   // multiplications along the depth; the kernel is told where each reads
constexpr int kCacheLine = 128;   // bytes
constexpr int kAlignment = 16;    // bytes, of what copies in bulk move

// The cores of a step: their numbers, -1 for no second one. The order is that in which their places in the
// staged input ascend, since the distance has no sign.
struct StepCores {
  short first, second;
};

// Warpgroups of a block, as many as their sums leave registers for.
CONVSWAP_ANYWHERE constexpr int most_warpgroups(int tiles) { return tiles > 8 ? 3 : 4; }

// What remains to be computed of results in shared memory before they go to y.
enum class Finish {
  nothing,
  activation,  // of each by itself
  everything,  // residual, activation and pool
};

// What turns sums into results and where they wait, for a filter and one of its folds.
struct alignas(16) FilterScale {
  float factor;  // two of them, since one float32 may not hold it
  float rest;
  float bias;
  int offset;  // in bytes
};

// The place of a core's row in the input, from the first of the tile's first channel, and among the cores.
struct StagedItem {
  int from, place;
};

// What a warpgroup keeps for itself.
struct WarpgroupState {
  TransactionBarrier copies;      // of the next tile's input
  unsigned most, least_less_one;  // of a tile that did not fit the scale
};

// What the block keeps while it finds the scales of the weights.
struct WeightState {
  unsigned windows;
};

// Where results wait, in elements: distances of neighbouring images, filters and output rows.
struct ResultPlaces {
  int image, plane, row;
  bool rows_join;    // the rows of a filter follow each other as in y
  bool planes_join;  // and the filters do too
};

// The parts of shared memory. The matrix comes first, and the cores of a warpgroup's part do, which costs the
// kernel no register.
struct SharedOffsets {
  static CONVSWAP_ANYWHERE constexpr Offset<unsigned> matrix() { return {}; }
  Offset<StagedItem> items;
  Offset<int> tops;
  Offset<WeightState> weight_state;
  Offset<unsigned char> warpgroups;
  int warpgroup_bytes;

  // Of a warpgroup's own part, from where that begins.
  static CONVSWAP_ANYWHERE constexpr Offset<unsigned> cores() { return {}; }
  Offset<unsigned char> results, stored;  // elements, and where they lie apart float32
  Offset<FilterScale> scales;
  Offset<WarpgroupState> state;
  Offset<unsigned char> raw;  // elements
};

}  // namespace convswap::toeplitz
