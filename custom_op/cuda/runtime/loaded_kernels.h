#pragma once

#include <string>

#include "cuda/host/kernels.h"
#include "cuda/runtime/compiler.h"
#include "cuda/runtime/kernel_code.h"

namespace convswap {

KernelRequest request_for(const std::string& instance, int compute_capability);

// The request for the device. A restricted device gets PTX of the older compute capability, which the driver
// compiles for the card.
KernelRequest request_for(const std::string& instance, const Device& device);

// The requested kernel as a CUfunction of the device; compiles and loads it if necessary. Unlike find_kernel
// of cuda/host/kernels.h, it accepts instances that no family lists.
const void* find_kernel(const KernelRequest& request, const Device& device, std::size_t argument_bytes);

// Everything that the code depends on, in one line.
std::string key_of(const KernelRequest& request, const Compiler& compiler);

// The kernel's code from the store, or else compiled and stored. Throws std::runtime_error if there is no
// compiler or the source does not compile.
KernelCode compiled_kernel(const KernelRequest& request);

}  // namespace convswap
