#pragma once

// The epilogue stage's kernel instances: each of these for each element type.

#include <string>

#include "cuda/host/text.h"

namespace convswap::epilogue {

struct Instance {
  bool pools;
  bool has_vectors;  // pools 16 bytes of channels of NHWC tensors per thread

  // The template arguments after the element type.
  std::string arguments() const {
    return joined(pools ? "true, " : "false, ", has_vectors ? "true" : "false");
  }
};

inline constexpr Instance kInstances[] = {{false, false}, {true, false}, {true, true}};

}  // namespace convswap::epilogue
