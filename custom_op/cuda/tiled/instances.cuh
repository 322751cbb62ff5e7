#pragma once

#include <vector>

#include "conv/small_floats.h"
#include "cuda/host/compiled_kernels.h"
#include "cuda/tiled/instances.h"
#include "cuda/tiled/kernel.cuh"

namespace convswap::tiled {

// The kernels of an element type, which is called `name`.
template <typename T>
std::vector<CompiledKernel> kernels_for(const char* name) {
  return for_each_instance<kInstances>([&]<Instance kOf>() {
    return CompiledKernel(instance_name("tiled::kernel", name, kOf.arguments()),
                          kernel<T, kOf.filters, kOf.columns>);
  });
}

}  // namespace convswap::tiled
