#pragma once

namespace convswap {

// In shared memory: where some threads arrive that others wait for; see arrival_barrier.cuh.
struct alignas(8) ArrivalBarrier {
  unsigned long long state;
};

}  // namespace convswap
