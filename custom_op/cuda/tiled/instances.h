#pragma once

// The list of tiled's kernel instances.

#include <string>

namespace convswap::tiled {

// What a thread computes, of 2 rows.
struct Instance {
  int filters, columns;

  // As the kernel's template takes them.
  std::string arguments() const { return std::to_string(filters) + ", " + std::to_string(columns); }
};

// For float32, float16 and bfloat16; and for float64, whose results take twice the registers.
inline constexpr Instance kInstances[] = {{1, 2}, {4, 2}, {8, 2}, {8, 4}};
inline constexpr Instance kFloat64Instances[] = {{1, 2}, {4, 2}, {8, 2}};

}  // namespace convswap::tiled
