#pragma once

// The host's calls to the driver that all programs answer alike. A program includes this once.

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

// Runs a kernel with float arguments whatever its element type: the arguments differ in pointer types only.
template <typename Arguments>
void run_kernel(const Launch& launch, void** arguments, void* shared) {
  const auto entry = reinterpret_cast<void (*)(Arguments)>(const_cast<void*>(launch.kernel));
  const auto& typed_arguments = *static_cast<const Arguments*>(arguments[0]);
  emulation::run_grid(
      dim3(launch.grid.x, launch.grid.y), dim3(launch.block.x, launch.block.y),
      static_cast<unsigned char*>(shared), launch.shared_bytes, [&] { entry(typed_arguments); },
      launch.cluster_blocks);
}

}  // namespace convswap
