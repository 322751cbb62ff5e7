#pragma once

#include <vector>

#include "cuda/host/compiled_kernels.h"
#include "cuda/implicit_gemm/instances.h"
#include "cuda/implicit_gemm/kernel.cuh"

namespace convswap::implicit_gemm {

// The kernels of a format, which is called `name`.
template <typename Format>
std::vector<CompiledKernel> kernels_for(const char* name) {
  return for_each_instance<kInstances>([&]<Instance kOf>() {
    return CompiledKernel(instance_name("implicit_gemm::kernel", name, kOf.arguments()),
                          kernel<Format, kOf.tiles>);
  });
}

}  // namespace convswap::implicit_gemm
