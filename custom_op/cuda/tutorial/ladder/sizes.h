#pragma once

namespace convswap::ladder {

// Sizes that the rungs' kernels and their launches share.

// Threads per block of rungs 7 to 10.
constexpr int kArrayThreads = 192, kUnrolledThreads = 192, kConstantsThreads = 192,
              kConstantMemoryThreads = 192;

// Rows and columns of a tile of rung 11, and of rung 12.
constexpr int kTile = 16, kFusedTile = 16;

// Rung 13: output rows and columns of a tile; tiles and threads of a block.
constexpr int kTileOutputs = 2;
constexpr int kWinogradTiles = 16, kWinogradThreads = 256;

// Rung 14: filters, columns and threads of a block, and taps of a step.
constexpr int kTensorFilters = 16, kTensorColumns = 64, kTensorTaps = 8, kTensorThreads = 128;
// Columns of one mma instruction, and instructions of a warp for each step.
constexpr int kMmaColumns = 8, kMmasPerWarp = 2;
constexpr int kTensorSharedFloats =
    kTensorFilters * kTensorTaps + kTensorTaps * kTensorColumns + kTensorFilters * kTensorColumns;

}  // namespace convswap::ladder
