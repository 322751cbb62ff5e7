#pragma once

// What the plan of row_windows and its kernel agree on, and what the kernel is told; row_windows.cc explains
// the words.

#include "cuda/epilogue/epilogue_params.h"
#include "cuda/primitives/fast_divisor.cuh"
#include "cuda/primitives/geometry.h"
#include "cuda/primitives/mbarrier.h"
#include "cuda/primitives/naive_conv.h"
#include "cuda/primitives/shared_offset.h"

namespace convswap::row_windows {

constexpr int kPlaceBytes = 16;  // of a window
constexpr int kRows = 64;        // of a product: filters, of one output row or of several
constexpr int kTiles = 16, kTileColumns = 8;
constexpr int kColumns = kTiles * kTileColumns;  // of a product: places
constexpr int kPlacesOfStep = 2;                 // along the depth of a product
constexpr int kMostSteps = 64;                   // products of a sum

constexpr int kSlots = 2;  // bands of an image in shared memory
constexpr int kWarpgroup = 128;
constexpr int kProducers = 2 * kWarpgroup, kProducerWarps = kProducers / 32;
constexpr int kConsumerWarpgroups = 3;
constexpr int kConsumers = kConsumerWarpgroups * kWarpgroup;
constexpr int kThreads = kProducers + kConsumers;
constexpr int kConsumerBarrier = kThreads / kWarpgroup + 1;  // of no warpgroup
// Of a thread. Those that it begins with are a multiple of eight, and the consumers can have no more than the
// producers leave them.
constexpr int kRegistersOfProducers = 72, kRegistersOfConsumers = 112;
static_assert(kProducers * kRegistersOfProducers + kConsumers * kRegistersOfConsumers <=
              65536 / kThreads / 8 * 8 * kThreads);

// Segments come in multiples of this, so that every producers' warp has as many turns as the others.
constexpr int kSegmentsAtOnce = 4 * kProducerWarps;
constexpr int kNoRow = -(1 << 30);  // of a segment that is none

// How the producers load windows: number by number, or where a row is whole words and windows begin at one,
// word by word; or two words by one load, where rows, images and the windows of a segment begin at pairs of
// them. From a window to the next is half a word then, or one, two or four.
constexpr int kWordsOfPair = 2;
enum class Loading : int {
  numbers,
  half_word_steps,
  word_steps,
  word_steps_by_pairs,
  two_word_steps,
  two_word_steps_by_pairs,
  four_word_steps
};

// A warp's share of windows of words. A lane loads some words, one behind the other, where its windows begin.
struct WordWindows {
  int step;  // in words; 0: half of one
  int loads;
  bool by_pairs;

  constexpr int windows() const { return step == 0 ? 2 * loads : loads / step; }  // of a lane
  // From a lane's first word to the last that its windows have.
  constexpr int words() const { return step == 0 ? loads + 4 : loads - step + 4; }
  // What is behind a lane's own words it has from the lanes behind it; the last have no windows for that.
  constexpr int places() const { return (32 - (words() - 1) / loads) * windows(); }  // of a segment
};

constexpr WordWindows words_of(Loading loading) {
  switch (loading) {
    case Loading::half_word_steps:
      return {0, 1, false};
    case Loading::word_steps:
      return {1, 1, false};
    case Loading::word_steps_by_pairs:
      return {1, 2, true};
    case Loading::two_word_steps:
      return {2, 2, false};
    case Loading::two_word_steps_by_pairs:
      return {2, 2, true};
    case Loading::four_word_steps:
      return {4, 4, false};
    case Loading::numbers:
      break;
  }
  return {};
}

// Of a segment.
constexpr int segment_places_of(Loading loading) {
  return loading == Loading::numbers ? 32 : words_of(loading).places();
}
constexpr int kFewestSegmentPlaces = [] {
  int fewest = segment_places_of(Loading::numbers);
  for (int i = 1; i <= static_cast<int>(Loading::four_word_steps); ++i) {
    const int places = segment_places_of(static_cast<Loading>(i));
    fewest = places < fewest ? places : fewest;
  }
  return fewest;
}();

// Of a place along the depth of the weights: which taps a window is multiplied with. `row` counts the rows of
// the image from the first that a group of output rows reads, `tap` is the column of the filter that meets
// the window's first number, and may be less than none.
struct DepthPlace {
  short channel, row, tap;  // a channel of -1: none, all weights are zeros
};

// A part of a row of the image, whose windows a warp puts at a time. All bands have the same ones, so that
// they are found once.
struct alignas(16) Segment {
  int at;                // of its first window's first number, from the first row on that a band reads
  int row, column;       // of the image, the row from the same row on
  short place, windows;  // in a slot; of a segment that is none, no windows
};

// In shared memory.
struct BlockState {
  Mbarrier windows_are_there[kSlots], windows_are_free[kSlots];
};

struct SharedOffsets {
  Offset<unsigned char> weights, slots;
  Offset<Segment> segments;
  Offset<int> outputs;  // of each column of a band its place in y from the band's first on; -1: none
  Offset<float> bias;
  Offset<BlockState> state;
};

template <typename Element>
struct Arguments : Tensors<Element>, Geometry {
  EpilogueParams following;
  SharedOffsets shared;
  int block_filters, folds;  // of a block; of a filter the rows of a product, one for each output row
  int row_phases;            // rows of the image from a group of output rows to the next
  int lead;                  // columns before the first tap, with which a window begins
  int groups, bands;         // groups of output rows in a band; bands of an image
  int band_rows;             // of the image, that a band reads
  int pitch;                 // places of a row
  int phase_places, channel_places, slot_places;
  int column_chunks, steps;
  int tiles;                     // bands of all images
  int segments, segment_places;  // with some behind them that are none; places of one
  FastDivisor bands_divisor, filter_blocks;
  Loading loading;
  int stored_together;  // neighbouring results that are one store: 8, 4, 2 or 1
  unsigned
      step_places[kMostSteps];  // of a product's first place, and in the upper half how far its second is
  DepthPlace depth[kMostSteps * kPlacesOfStep];
  NaiveConv definition;  // for sums that are not finite; behind what is always read
};

}  // namespace convswap::row_windows
