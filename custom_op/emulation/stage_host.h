#pragma once

// The host's part of a program for the kernels of an op that is no convolution. Include it once, after the
// headers of the op's kernels.

#include <string>

#include "cuda/host/launch.h"
#include "cuda_emulation.h"

namespace convswap {

DeviceGuard::DeviceGuard(int) {}
DeviceGuard::~DeviceGuard() {}
void allow_shared_memory(const void*, int) {}
int resident_blocks(const Launch&) { return 1; }
Start earliest_start(const void*) { return Start::in_turn; }
KernelFacts kernel_facts(std::string name, const Launch&) { return {name}; }

// Runs a kernel of one parameter, whose type may differ in the element type.
template <typename Arguments>
void run_kernel(const Launch& launch, void** arguments, unsigned char* shared) {
  const auto entry = reinterpret_cast<void (*)(Arguments)>(const_cast<void*>(launch.kernel));
  const auto& typed_arguments = *static_cast<const Arguments*>(arguments[0]);
  emulation::run_grid(dim3(launch.grid.x, launch.grid.y), dim3(launch.block.x), shared, launch.shared_bytes,
                      [&] { entry(typed_arguments); });
}

}  // namespace convswap
