#pragma once

// The sources of the kernels, which the library carries as text: the headers below custom_op that kernels
// include (cmake/KernelSources.cmake finds and writes them).

#include <cstddef>

namespace convswap {

struct KernelSource {
  const char* name;  // as it is included: "cuda/toeplitz/kernel.cuh"
  const char* text;
};

extern const KernelSource kKernelSources[];
extern const std::size_t kKernelSourceCount;

// What tells these sources from those of another version: 16 hexadecimal digits.
extern const char kKernelSourcesHash[];

}  // namespace convswap
