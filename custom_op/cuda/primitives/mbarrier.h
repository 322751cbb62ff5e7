#pragma once

namespace convswap {

// An mbarrier in shared memory; see mbarrier.cuh.
struct alignas(8) Mbarrier {
  unsigned long long state;
};

// An mbarrier in shared memory that also counts the bytes of TMA loads (transaction count); see tma.cuh.
struct TmaMbarrier : Mbarrier {};

}  // namespace convswap
