#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <iterator>
#include <map>
#include <vector>

#include "cuda/primitives/mbarrier.h"
#include "cuda_emulation.h"

namespace convswap {

// Loads complete as late as possible: when the first thread waits for them.
struct TmaLoad {
  std::function<void()> complete;
};
struct TmaLoads {
  std::vector<TmaLoad> issued;
  int pending_arrivals = 1;     // threads that have yet to arrive in this phase
  int arrivals = 1;             // the barrier's arrival count
  unsigned expected_bytes = 0;  // announced bytes whose loads are not issued yet
  unsigned completed_phases = 0;
};
inline std::map<const TmaMbarrier*, TmaLoads> tma_loads;
// All loads must have been waited for at the end of a block.
inline const bool checks_loads_at_block_end = [] {
  emulation::block_end_checks.push_back([] {
    for (const auto& [barrier, loads] : tma_loads) {
      if (!loads.issued.empty() || loads.pending_arrivals < loads.arrivals || loads.expected_bytes > 0)
        emulation::fail("a TMA load that no thread waited for");
    }
    tma_loads.clear();
  });
  return true;
}();

inline void tma_mbarrier_init(TmaMbarrier* barrier, int arrivals = 1) {
  if (tma_loads.count(barrier) != 0) emulation::fail("an mbarrier that is initialised twice");
  tma_loads[barrier].pending_arrivals = tma_loads[barrier].arrivals = arrivals;
}
inline TmaLoads& loads_of(TmaMbarrier* barrier) {
  const auto found = tma_loads.find(barrier);
  if (found == tma_loads.end()) emulation::fail("an mbarrier that is not initialised");
  return found->second;
}
// Issues a load of announced bytes, which `complete` writes.
inline void issue_load(void* shared, unsigned bytes, TmaMbarrier* barrier, std::function<void()> complete) {
  TmaLoads& loads = loads_of(barrier);
  if (loads.expected_bytes < bytes) emulation::fail("a TMA load without mbarrier_arrive_expect_tx");
  loads.expected_bytes -= bytes;
  // The target is overwritten, so that a read before the wait shows.
  std::memset(shared, 0xFF, bytes);
  loads.issued.push_back({std::move(complete)});
}
inline void tma_load_1d(void* shared, const void* global, unsigned bytes, TmaMbarrier* barrier) {
  const auto is_aligned = [](const void* address) { return reinterpret_cast<uintptr_t>(address) % 16 == 0; };
  if (!is_aligned(global) || !is_aligned(shared) || bytes % 16 != 0) {
    emulation::fail("a misaligned TMA load");
  }
  issue_load(shared, bytes, barrier, [=] { std::memcpy(shared, global, bytes); });
}
inline void tma_load_1d_expect_tx(void* shared, const void* global, unsigned bytes, TmaMbarrier* barrier) {
  TmaLoads& loads = loads_of(barrier);
  if (loads.pending_arrivals == 0) emulation::fail("a TMA load before the previous phase was waited for");
  loads.expected_bytes += bytes;
  tma_load_1d(shared, global, bytes, barrier);
}
inline void mbarrier_arrive(TmaMbarrier* barrier) {
  if (loads_of(barrier).pending_arrivals-- == 0)
    emulation::fail("more arrivals at an mbarrier than its arrival count");
}
inline void mbarrier_arrive_expect_tx(TmaMbarrier* barrier, unsigned bytes) {
  loads_of(barrier).expected_bytes += bytes;
  mbarrier_arrive(barrier);
}
inline void mbarrier_wait(TmaMbarrier* barrier, unsigned phase) {
  TmaLoads& loads = loads_of(barrier);
  // Another thread may have completed the phase already, but not the next one.
  if (loads.completed_phases % 2 != phase) {
    if (loads.completed_phases == 0) emulation::fail("a wait for a phase that has not begun");
    return;
  }
  while ((loads.pending_arrivals > 0 || loads.expected_bytes > 0) && loads.completed_phases % 2 == phase)
    emulation::yield();
  emulation::made_progress = true;
  if (loads.completed_phases % 2 != phase) return;
  for (const TmaLoad& load : loads.issued) load.complete();
  loads.issued.clear();
  loads.pending_arrivals = loads.arrivals, ++loads.completed_phases;
}

// The source of a TMA store, which must not change before the store is waited for.
struct TmaStore {
  const char* source;
  std::vector<char> bytes;
};
// Of each thread: the stores of the group that is still open, and those of committed groups.
inline std::vector<TmaStore> tma_stores[emulation::kMaxFibers], committed_tma_stores[emulation::kMaxFibers];
// All stores must have been waited for at the end of a block.
inline const bool checks_stores_at_block_end = [] {
  emulation::block_end_checks.push_back([] {
    for (int thread = 0; thread < emulation::kMaxFibers; ++thread) {
      if (!tma_stores[thread].empty() || !committed_tma_stores[thread].empty())
        emulation::fail("a TMA store that no thread waited for");
    }
  });
  return true;
}();

inline void tma_store_1d(void* global, const void* shared, unsigned bytes, bool) {
  const auto is_aligned = [](const void* address) { return reinterpret_cast<uintptr_t>(address) % 16 == 0; };
  if (!is_aligned(global) || !is_aligned(shared) || bytes % 16 != 0) {
    emulation::fail("a misaligned TMA store");
  }
  const char* const source = static_cast<const char*>(shared);
  tma_stores[emulation::current].push_back({source, {source, source + bytes}});
  std::memcpy(global, shared, bytes);
}
inline void tma_reduce_add_1d(float* global, const float* shared, unsigned bytes) {
  std::vector<float> totals(shared, shared + bytes / sizeof(float));
  const auto flushed = [](float value) { return std::fpclassify(value) == FP_SUBNORMAL ? 0.0f : value; };
  for (size_t i = 0; i < totals.size(); ++i) totals[i] = flushed(flushed(totals[i]) + flushed(global[i]));
  tma_store_1d(global, shared, bytes, false);
  std::memcpy(global, totals.data(), bytes);
}
inline void tma_store_commit_group() {
  std::ranges::move(tma_stores[emulation::current],
                    std::back_inserter(committed_tma_stores[emulation::current]));
  tma_stores[emulation::current].clear();
}
inline void tma_store_wait_group_read() {
  for (const TmaStore& store : committed_tma_stores[emulation::current]) {
    if (std::memcmp(store.source, store.bytes.data(), store.bytes.size()) != 0) {
      emulation::fail("a TMA store whose source changes");
    }
  }
  committed_tma_stores[emulation::current].clear();
}
inline void tma_store_wait_group() { tma_store_wait_group_read(); }
inline void fence_proxy_async() {}
inline void fence_proxy_async_global() {}

}  // namespace convswap
