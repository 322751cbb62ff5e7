#pragma once

#include <cstdint>

#include "cuda_emulation.h"

namespace convswap {

// What a thread's copies have read, which nobody may change before the thread has waited for them.
struct BulkStore {
  const char* from;
  std::vector<char> bytes;
};
inline std::vector<BulkStore> bulk_stores[1024];
// A block may not end before what its copies read has been read.
inline const bool is_checked_at_the_end = [] {
  emulation::block_ends.push_back([] {
    for (const auto& stores : bulk_stores) {
      if (!stores.empty()) emulation::fail("a bulk store that nobody waited for");
    }
  });
  return true;
}();

inline void bulk_store(void* global, const void* shared, unsigned bytes, bool) {
  const auto is_aligned = [](const void* address) { return reinterpret_cast<uintptr_t>(address) % 16 == 0; };
  if (!is_aligned(global) || !is_aligned(shared) || bytes % 16 != 0) {
    emulation::fail("a bulk store that is not aligned");
  }
  const char* const from = static_cast<const char*>(shared);
  bulk_stores[threadIdx.x].push_back({from, {from, from + bytes}});
  std::memcpy(global, shared, bytes);
}
inline void bulk_add(float* global, const float* shared, unsigned bytes) {
  std::vector<float> sums(shared, shared + bytes / sizeof(float));
  const auto flushed = [](float value) { return std::fpclassify(value) == FP_SUBNORMAL ? 0.0f : value; };
  for (size_t i = 0; i < sums.size(); ++i) sums[i] = flushed(flushed(sums[i]) + flushed(global[i]));
  bulk_store(global, shared, bytes, false);
  std::memcpy(global, sums.data(), bytes);
}
inline void commit_bulk_stores() {}
inline void wait_until_bulk_stores_have_read() {
  for (const BulkStore& store : bulk_stores[threadIdx.x]) {
    if (std::memcmp(store.from, store.bytes.data(), store.bytes.size()) != 0) {
      emulation::fail("a bulk store whose source changes");
    }
  }
  bulk_stores[threadIdx.x].clear();
}
inline void wait_until_bulk_stores_have_ended() { wait_until_bulk_stores_have_read(); }
inline void show_to_copies_and_products() {}
inline void show_global_to_copies() {}

}  // namespace convswap
