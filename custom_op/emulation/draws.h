#pragma once

// Random numbers of a seeded problem.

#include <cstdint>
#include <random>

namespace convswap {

using Random = std::mt19937;

inline int64_t between(Random& random, int64_t least, int64_t most) {
  return std::uniform_int_distribution<int64_t>(least, most)(random);
}
inline bool one_in(Random& random, int count) { return between(random, 1, count) == 1; }

}  // namespace convswap
