#pragma once

namespace convswap {

// An mbarrier in shared memory; see mbarrier.cuh.
struct alignas(8) Mbarrier {
  unsigned long long state;
};

// An mbarrier in shared memory that loads arrive at. It counts the bytes of TMA loads (transaction count, see
// tma.cuh), or the threads whose cp.async are complete (cp_async_mbarrier.cuh).
struct TmaMbarrier : Mbarrier {};

}  // namespace convswap
