#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "plan/kernel_facts.h"

namespace convswap {

// What the current device says of `kernel`, and the launch it is meant for. `shared_bytes` is what the launch
// adds to the shared memory that the kernel declares.
KernelFacts kernel_facts(std::string name, const void* kernel, dim3 grid, dim3 block, size_t shared_bytes);

}  // namespace convswap
