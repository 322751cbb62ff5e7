#pragma once

#include <vector>

#include "compiled.h"
#include "cuda/host/kernels.h"
#include "cuda/pool/family.h"
#include "cuda/pool/kernel.cuh"

namespace convswap {

// Emulated pool kernels of an element type. `name` is the type's name.
template <typename T>
std::vector<CompiledKernel> pool_kernels_for(const char* name) {
  return for_each_instance<pool::kInstances>([&]<pool::Instance kInstance>() {
    return CompiledKernel(instance_name("pool::kernel", name, kInstance.arguments()),
                          pool::kernel<T, kInstance.has_vectors, kInstance.run>);
  });
}

}  // namespace convswap
