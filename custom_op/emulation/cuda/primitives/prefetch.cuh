#pragma once

namespace convswap {

inline void prefetch(const void*) {}
inline void prefetch_near(const void*) {}

}  // namespace convswap
