#pragma once

// The list of implicit_gemm's kernel instances: for each format of the tensor cores one of each of these.

#include <string>

#include "cuda/implicit_gemm/layout.h"

namespace convswap::implicit_gemm {

struct Instance {
  int tiles;  // of eight columns, of a product

  // As the kernel's template takes them.
  std::string arguments() const { return std::to_string(tiles); }
};

inline constexpr Instance kInstances[] = {{kFewerTiles}, {kMostTiles}};

}  // namespace convswap::implicit_gemm
