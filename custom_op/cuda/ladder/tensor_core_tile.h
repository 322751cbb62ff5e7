#pragma once

namespace convswap::ladder {

// A block of rung 14: 16 filters and, by four warps, 64 columns.
constexpr int kTensorFilters = 16, kTensorColumns = 64, kTensorTaps = 8, kTensorThreads = 128;
// An instruction takes 8 columns, and a warp has two of them.
constexpr int kColumnsAtOnce = 8, kInstructions = 2;
constexpr int kTensorSharedFloats =
    kTensorFilters * kTensorTaps + kTensorTaps * kTensorColumns + kTensorFilters * kTensorColumns;

}  // namespace convswap::ladder
