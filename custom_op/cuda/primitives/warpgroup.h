#pragma once

namespace convswap {

// A warpgroup is threads 128 i to 128 i + 127 of a block.
constexpr int kWarpgroupThreads = 128;

}  // namespace convswap
