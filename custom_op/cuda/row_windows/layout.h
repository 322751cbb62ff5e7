#pragma once

// What the plan of row_windows and its kernel agree on; row_windows.cc explains the words.

namespace convswap::row_windows {

constexpr int kPlaceBytes = 16;  // of a window
constexpr int kRows = 64;        // of a product: filters, of one output row or of several
constexpr int kTiles = 16, kTileColumns = 8;
constexpr int kColumns = kTiles * kTileColumns;  // of a product: places
constexpr int kFour = 4;                         // results that may be one store
constexpr int kPlacesOfStep = 2;                 // along the depth of a product
constexpr int kMostSteps = 64;                   // products of a sum

constexpr int kSlots = 2;  // bands of an image in shared memory
constexpr int kWarpgroup = 128;
constexpr int kProducers = 2 * kWarpgroup, kProducerWarps = kProducers / 32;
constexpr int kConsumerWarpgroups = 3;
constexpr int kConsumers = kConsumerWarpgroups * kWarpgroup;
constexpr int kThreads = kProducers + kConsumers;
constexpr int kConsumerBarrier = kThreads / kWarpgroup + 1;  // of no warpgroup
// Of a thread; the block's come to 61,440, which are as many as it begins with.
constexpr int kRegistersOfProducers = 72, kRegistersOfConsumers = 112;

// Segments that all producers put at a time are at most, and a multiple of: there are as many as this.
constexpr int kSegmentsAtOnce = 4 * kProducerWarps;
constexpr int kNoRow = -(1 << 30);  // of a segment that is none

// Of a warp's lanes that load words of windows, those that have no window of their own, which ends behind
// them; and how many places the others have. `words`: from a window to the next, 0 for half of one.
constexpr int lanes_behind(int words) { return words == 0 ? 4 : (4 + words - 1) / words - 1; }
constexpr int places_of_segment(int words) { return (32 - lanes_behind(words)) * (words == 0 ? 2 : 1); }

}  // namespace convswap::row_windows
