#pragma once

// What the kernel of few_channels and its planner both know of the work and of shared memory.

namespace convswap {

constexpr int kFewChannelsMostThreads = 512;
constexpr int kQuad = 4;           // neighbouring output columns that one thread computes together
constexpr int kQuadsPerUnit = 16;  // the work of a warp at a time: two quads per thread, 64 pixels
constexpr int kPairsPerStep = 4;   // pairs of filter rows in one tensor-core multiplication, 8 deep
// Results of 8 filters at 64 pixels on their way through shared memory. The gap puts the 16-byte stores of a
// quarter-warp, two filters and four quads, into different banks.
constexpr int kStagedPitch = kQuad * kQuadsPerUnit + 8;
constexpr int kStagedWords = 8 * kStagedPitch;  // of one warp

constexpr int kNoSource = -2147483647 - 1;

// Where the pixels of a line come from: its first column's words in the raw copy, which may lie before it
// where the line begins in the padding; kNoSource for a line of zeros.
struct LineSource {
  int first, second;
};

// A pair of filter rows: where its pixels lie, and its weights.
struct FilterPair {
  int offset;  // of the first tap, from a pixel's word in shared memory
  int taps;
  int first, second;  // of the first tap within one filter; second is -1 where there is none
  float first_scale, second_scale;
};

}  // namespace convswap
