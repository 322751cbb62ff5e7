#pragma once

#include <cstdint>
#include <vector>

namespace convswap {

// Makes room for so many floats in memory that a thread keeps for the next run; what is there stays.
inline void grow(std::vector<float>& memory, int64_t elements) {
  if (static_cast<int64_t>(memory.size()) < elements) memory.resize(elements);
}

}  // namespace convswap
