#pragma once

#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <vector>

#include "cuda_emulation.h"

namespace convswap {

// What has been asked for arrives as late as it may: when the thread that asked waits for its group.
struct CpAsync {
  void* to;
  const void* from;
  int bytes;
};
struct CpAsyncGroups {
  std::vector<CpAsync> open;
  std::deque<std::vector<CpAsync>> groups;
};
inline std::map<int, CpAsyncGroups> async_copies;  // of each thread
// A block may not end before all has arrived.
inline const bool copies_are_checked_at_the_end = [] {
  emulation::block_ends.push_back([] {
    for (const auto& [thread, copies] : async_copies) {
      bool are_none = copies.open.empty();
      for (const auto& group : copies.groups) are_none = are_none && group.empty();
      if (!are_none) emulation::fail("a copy that nobody waited for");
    }
    async_copies.clear();
  });
  return true;
}();

inline void ask_for(void* shared, const void* global, int bytes) {
  const auto is_aligned = [&](const void* address) {
    return reinterpret_cast<uintptr_t>(address) % static_cast<uintptr_t>(bytes) == 0;
  };
  if (!is_aligned(global) || !is_aligned(shared)) emulation::fail("a copy that is not aligned");
  // What comes must not be there before: a read that does not wait then shows.
  std::memset(shared, 0xFF, static_cast<std::size_t>(bytes));
  async_copies[emulation::current].open.push_back({shared, global, bytes});
}
inline void cp_async_16(void* shared, const void* global) { ask_for(shared, global, 16); }
template <int kBytes>
void cp_async_zfill(void* shared, const void* global, bool is_there) {
  static_assert(kBytes == 4 || kBytes == 8);
  alignas(kBytes) static constexpr unsigned char kZeros[kBytes] = {};
  ask_for(shared, is_there ? global : kZeros, kBytes);
}
inline void cp_async_commit_group() {
  CpAsyncGroups& own = async_copies[emulation::current];
  own.groups.push_back(std::move(own.open));
  own.open.clear();
}
template <int kPending>
void cp_async_wait_group() {
  CpAsyncGroups& own = async_copies[emulation::current];
  for (; own.groups.size() > kPending; own.groups.pop_front()) {
    for (const CpAsync& copy : own.groups.front()) std::memcpy(copy.to, copy.from, copy.bytes);
  }
}

}  // namespace convswap
