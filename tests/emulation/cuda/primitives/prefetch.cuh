#pragma once

namespace convswap {

inline void prefetch(const void*) {}

}  // namespace convswap
