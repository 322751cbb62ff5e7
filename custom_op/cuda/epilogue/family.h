#pragma once

// The list of the epilogue stage's kernel instances: for each element type one of each of these.

#include <string>

namespace convswap::epilogue {

struct Instance {
  bool pools;

  // As the kernel's template takes them.
  std::string arguments() const { return pools ? "true" : "false"; }
};

inline constexpr Instance kInstances[] = {{false}, {true}};

}  // namespace convswap::epilogue
