#pragma once

// The epilogue stage's kernel instances: each of these for each element type.

#include <string>

namespace convswap::epilogue {

struct Instance {
  bool pools;

  // The template arguments after the element type.
  std::string arguments() const { return pools ? "true" : "false"; }
};

inline constexpr Instance kInstances[] = {{false}, {true}};

}  // namespace convswap::epilogue
