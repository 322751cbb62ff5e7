#pragma once

// What the plan of `pointwise` and its kernel agree on; pointwise.cc explains the words.

namespace convswap::pointwise {

constexpr int kPixels = 64;                            // of a tile, and of a product: its rows
constexpr int kTileFilters = 8;                        // of a product's columns
constexpr int kDepthBytes = 32;                        // of a product: channels of a pixel, or of a filter
constexpr int kCoreBytes = 16;                         // neighbouring channels of a filter that lie together
constexpr int kSlotStepBytes = kPixels * kDepthBytes;  // of a slot: what a product takes of a tile

}  // namespace convswap::pointwise
