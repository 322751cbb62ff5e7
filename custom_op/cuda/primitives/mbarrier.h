#pragma once

namespace convswap {

// In shared memory: where some threads arrive that others wait for; see mbarrier.cuh.
struct alignas(8) Mbarrier {
  unsigned long long state;
};

// In shared memory: one that also counts the bytes which bulk copies bring there; see tma.cuh.
struct TmaMbarrier : Mbarrier {};

}  // namespace convswap
