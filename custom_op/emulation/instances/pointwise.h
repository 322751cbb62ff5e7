#pragma once

#include <cstddef>
#include <vector>

#include "compiled.h"
#include "cuda/host/kernels.h"
#include "cuda/pointwise/family.h"
#include "cuda/pointwise/kernel.cuh"

namespace convswap::pointwise {

// Part kPart of kParts of the kernels of the element type `name`.
template <typename Element, std::size_t kPart, std::size_t kParts>
std::vector<CompiledKernel> kernels_for(const char* name) {
  return for_each_instance<kInstances, kPart, kParts>([&]<Instance kOf>() {
    return CompiledKernel(instance_name("pointwise::kernel", name, kOf.arguments()),
                          kernel<Element, kOf.tiles, kOf.warpgroups, kOf.steps, kOf.stages>);
  });
}

}  // namespace convswap::pointwise
