#pragma once

#include <vector>

#include "compiled.h"
#include "conv/small_floats.h"
#include "cuda/epilogue/family.h"
#include "cuda/epilogue/kernel.cuh"
#include "cuda/host/kernels.h"

namespace convswap::epilogue {

// Emulated kernel instances of an element type. `name` is the element type's name.
template <typename T>
std::vector<CompiledKernel> kernels_for(const char* name) {
  return for_each_instance<kInstances>([&]<Instance kInstance>() {
    return CompiledKernel(instance_name("epilogue::kernel", name, kInstance.arguments()),
                          kernel<T, kInstance.pools, kInstance.has_vectors>);
  });
}

}  // namespace convswap::epilogue
