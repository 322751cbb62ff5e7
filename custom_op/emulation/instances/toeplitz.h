#pragma once

#include <vector>

#include "compiled.h"
#include "cuda/host/kernels.h"
#include "cuda/toeplitz/family.h"
#include "cuda/toeplitz/kernel.cuh"

namespace convswap::toeplitz {

// Emulated kernel instances of a format. `name` is the format's name.
template <typename Format>
std::vector<CompiledKernel> kernels_for(const char* name) {
  return for_each_instance<kInstances>([&]<Instance kInstance>() {
    return CompiledKernel(instance_name("toeplitz::kernel", name, kInstance.arguments()),
                          kernel<Format, kInstance.accumulator_tiles, kInstance.has_epilogue>);
  });
}

}  // namespace convswap::toeplitz
