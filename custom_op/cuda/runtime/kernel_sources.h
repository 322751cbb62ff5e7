#pragma once

// The kernels' sources, embedded in the library as text: the headers of custom_op that kernels include, found
// by cmake/KernelSources.cmake.

#include <cstddef>

namespace convswap {

struct KernelSource {
  const char* name;  // the include path: "cuda/toeplitz/kernel.cuh"
  const char* text;
};

extern const KernelSource kKernelSources[];
extern const std::size_t kKernelSourceCount;

// Hash of all sources: 16 hexadecimal digits.
extern const char kKernelSourcesHash[];

}  // namespace convswap
