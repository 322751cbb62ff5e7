#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "cuda/primitives/transaction_barrier.h"
#include "cuda_emulation.h"

namespace convswap {

// What has been asked for arrives as late as it may: when the first thread waits for it.
struct BulkLoad {
  void* to;
  const void* from;
  unsigned bytes;
};
struct BulkLoads {
  std::vector<BulkLoad> started;
  int left = 1, arrivals = 1;  // threads that have not arrived yet, and all of them
  unsigned expected = 0;       // bytes that one has arrived for, and that have not been asked for
  unsigned phases = 0;         // that have ended
};
inline std::map<const TransactionBarrier*, BulkLoads> bulk_loads;
// A block may not end before all has arrived.
inline const bool loads_are_checked_at_the_end = [] {
  emulation::block_ends.push_back([] {
    for (const auto& [barrier, loads] : bulk_loads) {
      if (!loads.started.empty() || loads.left < loads.arrivals || loads.expected > 0)
        emulation::fail("a bulk load that nobody waited for");
    }
    bulk_loads.clear();
  });
  return true;
}();

inline void make_transaction_barrier(TransactionBarrier* barrier, int arrivals = 1) {
  if (bulk_loads.count(barrier) != 0) emulation::fail("a barrier of copies that is made twice");
  bulk_loads[barrier].left = bulk_loads[barrier].arrivals = arrivals;
}
inline BulkLoads& loads_of(TransactionBarrier* barrier) {
  const auto found = bulk_loads.find(barrier);
  if (found == bulk_loads.end()) emulation::fail("a barrier of copies that nobody has made");
  return found->second;
}
inline void start_load(void* shared, const void* global, unsigned bytes, TransactionBarrier* barrier) {
  const auto is_aligned = [](const void* address) { return reinterpret_cast<uintptr_t>(address) % 16 == 0; };
  if (!is_aligned(global) || !is_aligned(shared) || bytes % 16 != 0) {
    emulation::fail("a bulk load that is not aligned");
  }
  BulkLoads& loads = loads_of(barrier);
  if (loads.expected < bytes) emulation::fail("a bulk load that nobody has arrived for");
  loads.expected -= bytes;
  // What comes must not be there before: a read that does not wait then shows.
  std::memset(shared, 0xFF, bytes);
  loads.started.push_back({shared, global, bytes});
}
inline void bulk_load(void* shared, const void* global, unsigned bytes, TransactionBarrier* barrier) {
  BulkLoads& loads = loads_of(barrier);
  if (loads.left == 0) emulation::fail("a bulk load before the last ones were waited for");
  loads.expected += bytes;
  start_load(shared, global, bytes, barrier);
}
inline void arrive(TransactionBarrier* barrier) {
  if (loads_of(barrier).left-- == 0)
    emulation::fail("more arrive at a barrier of copies than it was made for");
}
inline void arrive_for_loads(TransactionBarrier* barrier, unsigned bytes) {
  loads_of(barrier).expected += bytes;
  arrive(barrier);
}
inline void wait(TransactionBarrier* barrier, unsigned phase) {
  BulkLoads& loads = loads_of(barrier);
  // Other threads may have waited for it before, but not for the phase behind it.
  if (loads.phases % 2 != phase) {
    if (loads.phases == 0) emulation::fail("a wait for a phase that has not begun");
    return;
  }
  while ((loads.left > 0 || loads.expected > 0) && loads.phases % 2 == phase) emulation::yield();
  emulation::has_moved = true;
  if (loads.phases % 2 != phase) return;
  for (const BulkLoad& load : loads.started) std::memcpy(load.to, load.from, load.bytes);
  loads.started.clear();
  loads.left = loads.arrivals, ++loads.phases;
}

}  // namespace convswap
