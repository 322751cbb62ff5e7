#pragma once

#include <cstdint>

namespace convswap {

// Both take non-negative numbers.
constexpr int64_t ceil_divide(int64_t a, int64_t b) { return (a + b - 1) / b; }
constexpr int64_t round_up(int64_t a, int64_t unit) { return ceil_divide(a, unit) * unit; }

}  // namespace convswap
