#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "cuda/primitives/mbarrier.h"
#include "cuda_emulation.h"

namespace convswap {

// What has been asked for arrives as late as it may: when the first thread waits for it.
struct TmaLoad {
  void* to;
  const void* from;
  unsigned bytes;
};
struct TmaLoads {
  std::vector<TmaLoad> started;
  int left = 1, arrivals = 1;  // threads that have not arrived yet, and all of them
  unsigned expected = 0;       // bytes that one has arrived for, and that have not been asked for
  unsigned phases = 0;         // that have ended
};
inline std::map<const TmaMbarrier*, TmaLoads> bulk_loads;
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

inline void tma_mbarrier_init(TmaMbarrier* barrier, int arrivals = 1) {
  if (bulk_loads.count(barrier) != 0) emulation::fail("a barrier of copies that is made twice");
  bulk_loads[barrier].left = bulk_loads[barrier].arrivals = arrivals;
}
inline TmaLoads& loads_of(TmaMbarrier* barrier) {
  const auto found = bulk_loads.find(barrier);
  if (found == bulk_loads.end()) emulation::fail("a barrier of copies that nobody has made");
  return found->second;
}
inline void tma_load_1d(void* shared, const void* global, unsigned bytes, TmaMbarrier* barrier) {
  const auto is_aligned = [](const void* address) { return reinterpret_cast<uintptr_t>(address) % 16 == 0; };
  if (!is_aligned(global) || !is_aligned(shared) || bytes % 16 != 0) {
    emulation::fail("a bulk load that is not aligned");
  }
  TmaLoads& loads = loads_of(barrier);
  if (loads.expected < bytes) emulation::fail("a bulk load that nobody has arrived for");
  loads.expected -= bytes;
  // What comes must not be there before: a read that does not wait then shows.
  std::memset(shared, 0xFF, bytes);
  loads.started.push_back({shared, global, bytes});
}
inline void tma_load_1d_expect_tx(void* shared, const void* global, unsigned bytes, TmaMbarrier* barrier) {
  TmaLoads& loads = loads_of(barrier);
  if (loads.left == 0) emulation::fail("a bulk load before the last ones were waited for");
  loads.expected += bytes;
  tma_load_1d(shared, global, bytes, barrier);
}
inline void mbarrier_arrive(TmaMbarrier* barrier) {
  if (loads_of(barrier).left-- == 0)
    emulation::fail("more arrive at a barrier of copies than it was made for");
}
inline void mbarrier_arrive_expect_tx(TmaMbarrier* barrier, unsigned bytes) {
  loads_of(barrier).expected += bytes;
  mbarrier_arrive(barrier);
}
inline void mbarrier_wait(TmaMbarrier* barrier, unsigned phase) {
  TmaLoads& loads = loads_of(barrier);
  // Other threads may have waited for it before, but not for the phase behind it.
  if (loads.phases % 2 != phase) {
    if (loads.phases == 0) emulation::fail("a wait for a phase that has not begun");
    return;
  }
  while ((loads.left > 0 || loads.expected > 0) && loads.phases % 2 == phase) emulation::yield();
  emulation::has_moved = true;
  if (loads.phases % 2 != phase) return;
  for (const TmaLoad& load : loads.started) std::memcpy(load.to, load.from, load.bytes);
  loads.started.clear();
  loads.left = loads.arrivals, ++loads.phases;
}

// What a thread's copies have read, which nobody may change before the thread has waited for them.
struct TmaStore {
  const char* from;
  std::vector<char> bytes;
};
inline std::vector<TmaStore> bulk_stores[1024];
// A block may not end before what its copies read has been read.
inline const bool is_checked_at_the_end = [] {
  emulation::block_ends.push_back([] {
    for (const auto& stores : bulk_stores) {
      if (!stores.empty()) emulation::fail("a bulk store that nobody waited for");
    }
  });
  return true;
}();

inline void tma_store_1d(void* global, const void* shared, unsigned bytes, bool) {
  const auto is_aligned = [](const void* address) { return reinterpret_cast<uintptr_t>(address) % 16 == 0; };
  if (!is_aligned(global) || !is_aligned(shared) || bytes % 16 != 0) {
    emulation::fail("a bulk store that is not aligned");
  }
  const char* const from = static_cast<const char*>(shared);
  bulk_stores[threadIdx.x].push_back({from, {from, from + bytes}});
  std::memcpy(global, shared, bytes);
}
inline void tma_reduce_add_1d(float* global, const float* shared, unsigned bytes) {
  std::vector<float> accumulators(shared, shared + bytes / sizeof(float));
  const auto flushed = [](float value) { return std::fpclassify(value) == FP_SUBNORMAL ? 0.0f : value; };
  for (size_t i = 0; i < accumulators.size(); ++i)
    accumulators[i] = flushed(flushed(accumulators[i]) + flushed(global[i]));
  tma_store_1d(global, shared, bytes, false);
  std::memcpy(global, accumulators.data(), bytes);
}
inline void tma_store_commit_group() {}
inline void tma_store_wait_group_read() {
  for (const TmaStore& store : bulk_stores[threadIdx.x]) {
    if (std::memcmp(store.from, store.bytes.data(), store.bytes.size()) != 0) {
      emulation::fail("a bulk store whose source changes");
    }
  }
  bulk_stores[threadIdx.x].clear();
}
inline void tma_store_wait_group() { tma_store_wait_group_read(); }
inline void fence_proxy_async() {}
inline void fence_proxy_async_global() {}

}  // namespace convswap
