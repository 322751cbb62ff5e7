#pragma once

// Constants that the plan and the kernel of row_windows share, and the kernel's arguments. row_windows.cc
// describes the algorithm.

#include "cuda/epilogue/epilogue_params.h"
#include "cuda/primitives/fast_divisor.cuh"
#include "cuda/primitives/geometry.h"
#include "cuda/primitives/mbarrier.h"
#include "cuda/primitives/naive_conv.h"
#include "cuda/primitives/shared_offset.h"

namespace convswap::row_windows {

constexpr int kWindowBytes = 16;  // one window: a row of a core matrix
constexpr int kRows = 64;         // M of one wgmma: filters of one or several output rows
constexpr int kTiles = 16, kTileColumns = 8;
constexpr int kColumns = kTiles * kTileColumns;  // N of one wgmma: windows
constexpr int kWindowsPerStep = 2;               // windows along K of one wgmma
constexpr int kMaxSteps = 64;                    // wgmmas per accumulator

constexpr int kStages = 2;  // pipeline stages: bands of an image in smem
constexpr int kWarpgroup = 128;
constexpr int kProducerThreads = 2 * kWarpgroup, kProducerWarps = kProducerThreads / 32;
constexpr int kConsumerWarpgroups = 3;
constexpr int kConsumerThreads = kConsumerWarpgroups * kWarpgroup;
constexpr int kThreads = kProducerThreads + kConsumerThreads;
constexpr int kConsumerBarrier = kThreads / kWarpgroup + 1;  // named barrier that no warpgroup uses
// Registers per thread after setmaxnreg. The initial count is a multiple of eight. Consumers get at most the
// registers that producers release.
constexpr int kProducerRegisters = 72, kConsumerRegisters = 112;
static_assert(kProducerThreads * kProducerRegisters + kConsumerThreads * kConsumerRegisters <=
              65536 / kThreads / 8 * 8 * kThreads);

// The number of segments is padded to a multiple of this, so that every producer warp has equally many.
constexpr int kSegmentMultiple = 4 * kProducerWarps;
constexpr int kNoRow = -(1 << 30);  // of a padding segment

// How producers load windows. `elements`: element by element. Other modes load 32-bit words and need rows and
// windows that begin at words; adjacent windows are half a word, or one, two or four words apart. `by_pairs`
// loads two words at once and needs rows, images and segments that begin at pairs of words.
constexpr int kWordsOfPair = 2;
enum class Loading : int {
  elements,
  half_word_steps,
  word_steps,
  word_steps_by_pairs,
  two_word_steps,
  two_word_steps_by_pairs,
  four_word_steps
};

// Windows of a warp that loads words. A lane loads `loads` consecutive words, where its windows begin.
struct WordWindows {
  int step;  // words between adjacent windows; 0: half a word
  int loads;
  bool by_pairs;

  constexpr int windows() const { return step == 0 ? 2 * loads : loads / step; }  // per lane
  // Number of words that a lane's windows span.
  constexpr int words() const { return step == 0 ? loads + 4 : loads - step + 4; }
  // Number of windows of a segment. A lane takes the words after its own from the next lanes (shuffles), so
  // the last lanes have no windows.
  constexpr int windows_per_segment() const { return (32 - (words() - 1) / loads) * windows(); }
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
    case Loading::elements:
      break;
  }
  return {};
}

// Number of windows of a segment.
constexpr int windows_per_segment_of(Loading loading) {
  return loading == Loading::elements ? 32 : words_of(loading).windows_per_segment();
}
constexpr int kMinWindowsPerSegment = [] {
  int minimum = windows_per_segment_of(Loading::elements);
  for (int i = 1; i <= static_cast<int>(Loading::four_word_steps); ++i) {
    const int windows = windows_per_segment_of(static_cast<Loading>(i));
    minimum = windows < minimum ? windows : minimum;
  }
  return minimum;
}();

// Taps that a window at one position of the GEMM depth is multiplied with. `row`: image row, relative to the
// first that a group of output rows reads. `tap`: filter column at the window's first element; may be
// negative.
struct DepthWindow {
  short channel, row, tap;  // channel -1: padding, all weights are zeros
};

// Part of an image row whose windows one warp stores at a time. Segments are the same for all bands and are
// computed once.
struct alignas(16) Segment {
  int input_offset;              // offset of its first element from the first row that the band reads
  int row, column;               // image position; the row is relative to the same row
  short window_offset, windows;  // position in a stage; 0 windows in a padding segment
};

// Mbarriers in shared memory.
struct BlockState {
  Mbarrier full_barriers[kStages], empty_barriers[kStages];
};

struct SharedOffsets {
  Offset<unsigned char> weights, stages;
  Offset<Segment> segments;
  Offset<int> outputs;  // offset in y from the band's first output, per column of a band; -1: no output
  Offset<float> bias;
  Offset<BlockState> state;
};

template <typename Element>
struct Arguments : Tensors<Element>, Geometry {
  EpilogueParams epilogue;
  SharedOffsets shared;
  int block_filters, folds;  // filters of a block; output rows per wgmma
  int row_phases;            // image rows between adjacent groups of output rows
  int lead;                  // columns of a window before the first tap
  int groups, bands;         // groups of output rows in a band; bands of an image
  int band_rows;             // image rows that a band reads
  int pitch;                 // windows per row
  int phase_windows, channel_windows, stage_windows;
  int column_chunks, steps;
  int tiles;                          // bands of all images
  int segments, windows_per_segment;  // including padding segments; windows per segment
  FastDivisor bands_divisor, filter_blocks;
  Loading loading;
  int outputs_per_store;             // adjacent outputs per store: 8, 4, 2 or 1
  unsigned step_offsets[kMaxSteps];  // low half: smem position of a wgmma's first window; high half: distance
                                     // to its second
  DepthWindow depth[kMaxSteps * kWindowsPerStep];
  NaiveConv naive_conv;  // recomputes outputs that are not finite; last, because it is rarely read
};

}  // namespace convswap::row_windows
