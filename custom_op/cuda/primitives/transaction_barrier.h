#pragma once

#include "cuda/primitives/arrival_barrier.h"

namespace convswap {

// In shared memory: one that also counts the bytes which bulk copies bring there; see bulk_load.cuh.
struct TransactionBarrier : ArrivalBarrier {};

}  // namespace convswap
