#pragma once

#include <vector>

#include "compiled.h"
#include "conv/small_floats.h"
#include "cuda/host/kernels.h"
#include "cuda/sliding_rows/family.h"
#include "cuda/sliding_rows/kernel.cuh"

namespace convswap::sliding_rows {

// Emulated kernel instances of an element type. `name` is the element type's name.
template <typename T>
std::vector<CompiledKernel> kernels_for(const char* name) {
  return for_each_instance<kInstances>([&]<Instance kInstance>() {
    return CompiledKernel(instance_name("sliding_rows::kernel", name, kInstance.arguments()),
                          kernel<T, kInstance.taps, kInstance.stride, kInstance.pad_left, kInstance.outputs,
                                 kInstance.vector_columns>);
  });
}

}  // namespace convswap::sliding_rows
