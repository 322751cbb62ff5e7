#pragma once

// What the kernel of depthwise and its planner both know of a block. Words are of 4 bytes.

#include "conv/anywhere.h"

namespace convswap::depthwise {

constexpr int kMostThreads = 256;

// Columns of the image that are loaded together.
constexpr int kMostTogether = 4;

// The parts of a block's shared memory: places of planes in x, then the window, filters, biases.
CONVSWAP_ANYWHERE constexpr int source_words(int window_planes) { return (2 * window_planes + 3) / 4 * 4; }

}  // namespace convswap::depthwise
