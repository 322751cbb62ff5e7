#pragma once

// The pool kernel's instances: each of these for each element type.

#include <string>
#include <string_view>

#include "cuda/host/text.h"
#include "cuda/pool/arguments.h"

namespace convswap::pool {

struct Instance {
  bool has_vectors;  // a thread pools 16 bytes of channels, not one element
  int run;           // neighbouring outputs of a row that a thread computes, or kWholeImage

  // The template arguments after the element type.
  std::string arguments() const { return joined(has_vectors ? "true, " : "false, ", run); }
};

inline constexpr int kLongRun = 4;
inline constexpr Instance kInstances[] = {{false, 1}, {true, 1}, {true, kLongRun}, {true, kWholeImage}};

// The names of the element types.
inline constexpr std::string_view kPoolElements[] = {"float",    "double", "Float16",
                                                     "BFloat16", "Int8",   "UInt8"};

}  // namespace convswap::pool
