#pragma once

#include "plan/algorithm.h"

namespace convswap {

// A ParallelFor on `threads` threads of its own (0: as many as the processor has), for callers that have no
// pool to lend: the Python bindings. Threads are started and joined in every call.
ParallelFor thread_team(int threads);

}  // namespace convswap
