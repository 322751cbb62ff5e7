#pragma once

// What the plan of row_windows and its kernel agree on; row_windows.cc explains the words.

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

}  // namespace convswap::row_windows
