#pragma once

namespace convswap {

// A team of threads: a warpgroup, threads 128 i to 128 i + 127 of a block.
constexpr int kTeamThreads = 128;

}  // namespace convswap
