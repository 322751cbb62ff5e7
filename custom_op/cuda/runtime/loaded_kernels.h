#pragma once

#include <string>

#include "cuda/host/kernels.h"
#include "cuda/runtime/compiler.h"
#include "cuda/runtime/kernel_code.h"

namespace convswap {

KernelRequest request_for(const std::string& instance, int compute_capability);

// The kernel of a request on the device, a CUfunction, compiled and loaded if need be, as find_kernel of
// cuda/host/kernels.h for instances that no family lists.
const void* find_kernel(const KernelRequest& request, const Device& device, std::size_t argument_bytes);

// All that the code depends on, in one line.
std::string key_of(const KernelRequest& request, const Compiler& compiler);

// The code of a kernel, from the store where it is there, else compiled and stored. Throws std::runtime_error
// where there is no compiler, or where it refuses the source.
KernelCode compiled_kernel(const KernelRequest& request);

}  // namespace convswap
