#pragma once

// What the plan of implicit_gemm and its kernel agree on, and what the kernel is told; implicit_gemm.cc
// explains the words.

#include "cuda/primitives/fast_divisor.cuh"
#include "cuda/primitives/geometry.h"
#include "cuda/primitives/mbarrier.h"
#include "cuda/primitives/naive_conv.h"
#include "cuda/primitives/shared_offset.h"

namespace convswap::implicit_gemm {

constexpr int kPlaceBytes = 16;  // eight numbers of one place of the image
constexpr int kHalfPlaceBytes = kPlaceBytes / 2;
constexpr int kChunkChannels = 4;  // what is loaded and converted at a time
constexpr int kRows = 64;          // of a product: filters of all folds
constexpr int kDepth = 16;         // of a product: two half steps of eight
// Of the columns of a product, which are neighbouring outputs: one less where fewer are then no outputs.
constexpr int kMostTiles = 16, kFewerTiles = kMostTiles - 1;
constexpr int kTileColumns = 8;
// Weights of the first steps stay in registers; those of the others are read from shared memory each time.
constexpr int kHeldSteps = 24;
// Products of so many steps follow each other without a question.
constexpr int kStepsAtOnce = 2;
// On their way into registers so many steps lie in shared memory.
constexpr int kStagedSteps = 4;
constexpr int kMostSteps = 128;
// A warpgroup's last products are multiplied beside the first ones of the other, so that the tensor cores
// never wait for a warpgroup to begin; those of so many steps, where sums are short or long.
constexpr int kStepsOfBoth = 4, kStepsOfBothInLongSums = 8;
constexpr int kLongSum = 24;
static_assert(kHeldSteps % kStepsAtOnce == 0 && kStepsOfBoth % kStepsAtOnce == 0 &&
              kStepsOfBothInLongSums % kStepsAtOnce == 0);
constexpr int kStepUnits = kRows * kDepth * 2 / 16;  // of 16 bytes, that the weights of a step take
constexpr int kStagedBytes = kStagedSteps * kStepUnits * 16;

// Three warps produce converted images, one stores, and two warpgroups consume.
constexpr int kProducers = 96;
constexpr int kPixelsAtOnce = 4;  // of a producer: loads in flight before the first store
constexpr int kStorers = 32;
constexpr int kConsumerWarpgroups = 2;
constexpr int kConsumers = 128 * kConsumerWarpgroups;
constexpr int kThreads = kProducers + kStorers + kConsumers;
// Registers of a thread: that the kernel begins with, and by roles.
constexpr int kRegisters = 168, kRegistersOfProducers = 88, kRegistersOfConsumers = 208;
static_assert(kRegistersOfProducers * 128 + kRegistersOfConsumers * kConsumers <= kRegisters * kThreads);
// Barriers of their own, behind those of the block's three warpgroups (warpgroup.cuh).
constexpr int kProducerBarrier = 4, kConsumerBarrier = 5;

constexpr int kSlots = 2;        // of converted images
constexpr int kMostStages = 3;   // of chunks as they are loaded
constexpr int kMostBuffers = 2;  // of an image's results
constexpr int kAlignment = 16;   // bytes, of what copies in bulk move
// Bytes between the results of the late filters, which copies may still be reading, and those of the others,
// which may lie farther from a boundary the next time. In banks as without it.
constexpr int kLateGap = 128;

// Eight numbers of the depth: where they lie beside those of an output, in the input's rows and columns, and
// in which bundle of channels. No bundle, -1: they meet weights of zero.
struct HalfStep {
  short bundle, row, column;
};

// Where a pixel is stored, in half places, of which 16 bits can number twice those that there are. `own`: for
// its own tap. `paired`, of the half-filled bundle: where pixels are side by side a second time, behind the
// one before it; where they are below each other the only time.
struct alignas(4) PixelPlaces {
  unsigned short own, paired;
};
constexpr unsigned short kNoPlace = 0xffff;  // no output reads it

// Where the results of a product's columns lie: for each of the four threads that share a row of the sums,
// those of its two columns of all tiles; apart so that the four read from different banks.
constexpr int kOutputsOfThread = 2 * kMostTiles + 4;
constexpr int kOutputsOfChunk = 4 * kOutputsOfThread;
// What is no output: farther than any place, so that its sums go where nobody reads them.
constexpr int kNoOutput = 1 << 30;
// Where they go: room of each thread for two float32.
constexpr int kUnreadBytes = 8;

// What turns the sums of a row of the product into results, and how far these lie from those of the first
// filter and fold, in bytes; less than 0 where there is no such filter. Places from `end` on are behind the
// last output row.
struct alignas(8) RowScale {
  float factor, rest;  // two of them, since one float32 may not hold it
  float bias;
  int end;
  int offsets[2];  // in the two places of late filters
};

// The filter and the fold of a row of the product; no filter, -1.
struct RowOwner {
  short filter, fold;
};

// What is to be done with a converted image.
enum class Task {
  store,
  add,     // another window of the image before
  define,  // infinities or NaN: as the definition says
  end,     // there is no other
};

struct SlotState {
  int image;
  int top;  // of the window that it was converted with
  Task task;
};

// What the block keeps in shared memory beside images, weights and results.
struct BlockState {
  TmaMbarrier loaded[kMostStages];
  Mbarrier converted[kSlots], multiplied[kSlots];
  Mbarrier written[kMostBuffers], stored[kMostBuffers];
  Mbarrier turns[kConsumerWarpgroups];
  SlotState slots[kSlots];
  unsigned most, least_less_one;  // of an image that did not fit the scale
  unsigned weight_windows;
};

// The parts of shared memory.
struct SharedOffsets {
  // That are not held in registers. They come first, which costs the kernel no register.
  static CONVSWAP_HOST_DEVICE constexpr Offset<unsigned> weights() { return {}; }
  Offset<unsigned char> slots, stages, results, unread;
  Offset<PixelPlaces> pixels;
  Offset<int> outputs;
  Offset<RowScale> scales;
  Offset<int> tops;
  Offset<BlockState> state;
};

template <typename Element>
struct Arguments : Tensors<Element>, Geometry {
  int y_misalignment;                // elements from a boundary of kAlignment to y
  long long input_elements;          // of x
  int block_filters, filter_blocks;  // filters of a block, and blocks of a group
  FastDivisor dilation_height_divisor, dilation_width_divisor;
  FastDivisor input_width_divisor;

  int folds;
  int chunks;       // of channels
  int half_chunk;   // the one of which a place has two pixels; -1 for none
  bool pairs_rows;  // these lie below each other, not side by side
  FastDivisor row_phases, column_phases;
  FastDivisor pitch;
  int plane_places, plane_rows;
  int bundle_places, part_places, slot_places;
  int steps, steps_held;
  int turn_ends;  // the step before which the other warpgroup may begin
  int output_chunks;
  int first_ragged;  // of them, that has columns of the last rows, where some folds have no row
  int stages, stage_bytes;
  int buffers, buffer_bytes, results_bytes;
  int late_filters;   // of a block, whose results have a second place where there is one buffer
  int late_bytes;     // from their first place to the second
  bool writes_pairs;  // of neighbouring results, where an image's first is aligned to two
  bool leaves_first;  // y leaves the cache before all other data
  SharedOffsets shared;
  RowOwner rows[kRows];
  HalfStep half_steps[2 * kMostSteps];
  // Of the first half, and in the upper half the distance of the second. Two steps are one load, where they
  // are aligned so.
  alignas(8) unsigned step_places[kMostSteps];

  NaiveConv definition;  // for data with infinities or NaN; behind what is always read
};

}  // namespace convswap::implicit_gemm
