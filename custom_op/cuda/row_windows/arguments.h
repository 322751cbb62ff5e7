#pragma once

// What the kernel of row_windows is told; plan.cc fills it in, row_windows.cc explains the words.

#include "cuda/epilogue/following.h"
#include "cuda/primitives/fast_divisor.cuh"
#include "cuda/primitives/geometry.h"
#include "cuda/primitives/mbarrier.h"
#include "cuda/primitives/naive_conv.h"
#include "cuda/primitives/shared_offset.h"
#include "cuda/row_windows/layout.h"

namespace convswap::row_windows {

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
  ArrivalBarrier windows_are_there[kSlots], windows_are_free[kSlots];
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
  Following following;
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
  Definition definition;  // for sums that are not finite; behind what is always read
};

}  // namespace convswap::row_windows
