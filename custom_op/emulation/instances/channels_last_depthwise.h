#pragma once

#include <vector>

#include "compiled.h"
#include "cuda/channels_last_depthwise/family.h"
#include "cuda/channels_last_depthwise/row_by_row.cuh"
#include "cuda/channels_last_depthwise/sliding.cuh"
#include "cuda/host/kernels.h"

namespace convswap::channels_last_depthwise {

// Emulated kernel instances of an element type. `name` is the type's name.
template <typename T>
std::vector<CompiledKernel> kernels_for(const char* name) {
  std::vector<CompiledKernel> kernels = for_each_instance<kInstances>([&]<Instance kInstance>() {
    if constexpr (kInstance.kind == Kind::sliding) {
      return CompiledKernel(kInstance.name(name), sliding<T, kInstance.width, kInstance.stride>);
    } else {
      return CompiledKernel(kInstance.name(name),
                            row_by_row<T, kInstance.kind == Kind::vectors, kInstance.width>);
    }
  });
  kernels.emplace_back(instance_name("channels_last_depthwise::prepare", name), prepare<T>);
  return kernels;
}

}  // namespace convswap::channels_last_depthwise
