#pragma once

#include <cstdint>
#include <cstring>

#include "cuda_emulation.h"

namespace convswap {

inline void copy_async_16_bytes(void* shared, const void* global) {
  if (reinterpret_cast<uintptr_t>(global) % 16 != 0) emulation::fail("a copy that is not aligned");
  std::memcpy(shared, global, 16);
}
inline void commit_copies() {}
template <int kPending>
void wait_for_copies() {}

}  // namespace convswap
