#pragma once

#include <cstddef>
#include <vector>

#include "compiled.h"
#include "cuda/host/kernels.h"
#include "cuda/implicit_gemm/family.h"
#include "cuda/implicit_gemm/kernel.cuh"

namespace convswap::implicit_gemm {

// A part of the kernels of a format, which is called `name`.
template <typename Format, std::size_t kPart, std::size_t kParts>
std::vector<CompiledKernel> kernels_for(const char* name) {
  return for_each_instance<kInstances, kPart, kParts>([&]<Instance kOf>() {
    return CompiledKernel(instance_name("implicit_gemm::kernel", name, kOf.arguments()),
                          kernel<Format, kOf.tiles>);
  });
}

}  // namespace convswap::implicit_gemm
