#pragma once

#include <cstddef>
#include <vector>

#include "compiled.h"
#include "cuda/host/kernels.h"
#include "cuda/implicit_gemm/family.h"
#include "cuda/implicit_gemm/kernel.cuh"

namespace convswap::implicit_gemm {

// Emulated kernel instances of a format: part kPart of kParts. `name` is the format's name.
template <typename Format, std::size_t kPart, std::size_t kParts>
std::vector<CompiledKernel> kernels_for(const char* name) {
  return for_each_instance<kInstances, kPart, kParts>([&]<Instance kInstance>() {
    return CompiledKernel(instance_name("implicit_gemm::kernel", name, kInstance.arguments()),
                          kernel<Format, kInstance.tiles>);
  });
}

}  // namespace convswap::implicit_gemm
