#pragma once

#include <vector>

#include "compiled.h"
#include "conv/small_floats.h"
#include "cuda/depthwise/family.h"
#include "cuda/depthwise/kernel.cuh"
#include "cuda/host/kernels.h"

namespace convswap::depthwise {

// Emulated kernel instances of an element type. `name` is the element type's name.
template <typename T>
std::vector<CompiledKernel> kernels_for(const char* name) {
  return for_each_instance<kInstances>([&]<Instance kInstance>() {
    return CompiledKernel(instance_name("depthwise::kernel", name, kInstance.arguments()),
                          kernel<T, kInstance.rows, kInstance.width, kInstance.slides>);
  });
}

}  // namespace convswap::depthwise
