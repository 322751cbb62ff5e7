#pragma once

// What the plan of `pointwise` and its kernel agree on; pointwise.cc explains the words.

namespace convswap::pointwise {

constexpr int kPixels = 64;      // of a tile, and of a product: its rows
constexpr int kTileFilters = 8;  // of a product's columns
constexpr int kDepth = 8;        // of a product: channels
constexpr int kQuad = 4;         // channels whose weights of a filter are 16 bytes

}  // namespace convswap::pointwise
