#pragma once

#include "conv/epilogue.h"

namespace convswap {

// What a kernel is told of what follows its sums, without having to ask what it is where that only limits.
struct EpilogueParams {
  Epilogue epilogue;
  bool only_clamps;  // a result is no less and no more than these
  float least, most;
};

}  // namespace convswap
