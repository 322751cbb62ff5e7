#pragma once

namespace convswap {

// A warpgroup: threads 128 i to 128 i + 127 of a block.
constexpr int kWarpgroupThreads = 128;

}  // namespace convswap
