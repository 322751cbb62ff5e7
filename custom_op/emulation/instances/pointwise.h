#pragma once

#include <vector>

#include "compiled.h"
#include "cuda/host/kernels.h"
#include "cuda/pointwise/family.h"
#include "cuda/pointwise/kernel.cuh"

namespace convswap::pointwise {

// Emulated kernel instances of an element type. `name` is the element type's name.
template <typename Element>
std::vector<CompiledKernel> kernels_for(const char* name) {
  return for_each_instance<kInstances>([&]<Instance kInstance>() {
    return CompiledKernel(
        instance_name("pointwise::kernel", name, kInstance.arguments()),
        kernel<Element, kInstance.tiles, kInstance.warpgroups, kInstance.steps, kInstance.stages>);
  });
}

}  // namespace convswap::pointwise
