#pragma once

#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <vector>

#include "cuda/primitives/shared_memory.cuh"
#include "cuda_emulation.h"

namespace convswap {

// Copies complete as late as possible: when the issuing thread waits for their group.
struct CpAsync {
  void* target;
  const void* source;
  int bytes;
};
struct CpAsyncGroups {
  std::vector<CpAsync> open;
  std::deque<std::vector<CpAsync>> groups;
};
inline std::map<int, CpAsyncGroups> async_copies;  // by thread
// All copies must have been waited for at the end of a block.
inline const bool checks_copies_at_block_end = [] {
  emulation::block_end_checks.push_back([] {
    for (const auto& [thread, copies] : async_copies) {
      bool all_waited_for = copies.open.empty();
      for (const auto& group : copies.groups) all_waited_for = all_waited_for && group.empty();
      if (!all_waited_for) emulation::fail("a cp.async that no thread waited for");
    }
    async_copies.clear();
  });
  return true;
}();

inline void issue_copy(void* shared, const void* global, int bytes) {
  const auto is_aligned = [&](const void* address) {
    return reinterpret_cast<uintptr_t>(address) % static_cast<uintptr_t>(bytes) == 0;
  };
  if (!is_aligned(global) || !is_aligned(shared)) emulation::fail("a misaligned cp.async");
  // The target is overwritten, so that a read before the wait shows.
  std::memset(shared, 0xFF, static_cast<std::size_t>(bytes));
  async_copies[emulation::current].open.push_back({shared, global, bytes});
}
inline void cp_async_16(void* shared, const void* global) { issue_copy(shared, global, 16); }
template <int kBytes>
void cp_async_zfill(void* shared, const void* global, bool in_bounds) {
  static_assert(kBytes == 4 || kBytes == 8 || kBytes == 16);
  alignas(kBytes) static constexpr unsigned char kZeros[kBytes] = {};
  issue_copy(shared, in_bounds ? global : kZeros, kBytes);
}
template <int kBytes>
void cp_async_zfill(SharedAddress target, const void* global, bool in_bounds) {
  cp_async_zfill<kBytes>(reinterpret_cast<void*>(target), global, in_bounds);
}
inline void cp_async_commit_group() {
  CpAsyncGroups& copies = async_copies[emulation::current];
  copies.groups.push_back(std::move(copies.open));
  copies.open.clear();
}
template <int kPending>
void cp_async_wait_group() {
  CpAsyncGroups& copies = async_copies[emulation::current];
  for (; copies.groups.size() > kPending; copies.groups.pop_front()) {
    for (const CpAsync& copy : copies.groups.front()) std::memcpy(copy.target, copy.source, copy.bytes);
  }
}

}  // namespace convswap
