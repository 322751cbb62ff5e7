#pragma once

#include <vector>

#include "compiled.h"
#include "cuda/host/kernels.h"
#include "cuda/implicit_gemm/family.h"
#include "cuda/implicit_gemm/kernel.cuh"

namespace convswap::implicit_gemm {

// Emulated kernel instances of a format. `name` is the format's name.
template <typename Format>
std::vector<CompiledKernel> kernels_for(const char* name) {
  return for_each_instance<kInstances>([&]<Instance kInstance>() {
    return CompiledKernel(instance_name("implicit_gemm::kernel", name, kInstance.arguments()),
                          kernel<Format, kInstance.tiles>);
  });
}

}  // namespace convswap::implicit_gemm
