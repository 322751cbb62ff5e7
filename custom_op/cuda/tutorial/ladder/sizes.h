#pragma once

namespace convswap::ladder {

// What the kernels of the rungs and the host, which starts them, agree on.

// Threads of a block: rungs 7 to 10.
constexpr int kArrayThreads = 192, kUnrolledThreads = 192, kConstantsThreads = 192,
              kConstantMemoryThreads = 192;

// A tile's rows and columns: rung 11's, and rung 12's.
constexpr int kTile = 16, kFusedTile = 16;

// Rung 13: of a tile the outputs down and across; of a block the tiles and the threads.
constexpr int kTileOutputs = 2;
constexpr int kWinogradTiles = 16, kWinogradThreads = 256;

// A block of rung 14: 16 filters and, by four warps, 64 columns.
constexpr int kTensorFilters = 16, kTensorColumns = 64, kTensorTaps = 8, kTensorThreads = 128;
// An instruction takes 8 columns, and a warp has two of them.
constexpr int kColumnsAtOnce = 8, kInstructions = 2;
constexpr int kTensorSharedFloats =
    kTensorFilters * kTensorTaps + kTensorTaps * kTensorColumns + kTensorFilters * kTensorColumns;

}  // namespace convswap::ladder
