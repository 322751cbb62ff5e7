#pragma once

#include <vector>

#include "compiled.h"
#include "conv/small_floats.h"
#include "cuda/host/kernels.h"
#include "cuda/separable/family.h"
#include "cuda/separable/kernel.cuh"

namespace convswap::separable {

// Emulated kernel instances of an element type. `name` is the element type's name.
template <typename T>
std::vector<CompiledKernel> kernels_for(const char* name) {
  return for_each_instance<kInstances>([&]<Instance kInstance>() {
    return CompiledKernel(instance_name("separable::kernel", name, kInstance.arguments()),
                          kernel<T, kInstance.stride, kInstance.filter_tiles, kInstance.rows, kInstance.down,
                                 kInstance.across>);
  });
}

}  // namespace convswap::separable
