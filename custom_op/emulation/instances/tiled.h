#pragma once

#include <type_traits>
#include <vector>

#include "compiled.h"
#include "conv/small_floats.h"
#include "cuda/host/kernels.h"
#include "cuda/tiled/family.h"
#include "cuda/tiled/kernel.cuh"

namespace convswap::tiled {

// Emulated kernel instances of an element type. `name` is the element type's name.
template <typename T>
std::vector<CompiledKernel> kernels_for(const char* name) {
  const auto compiled = [&]<Instance kInstance>() {
    return CompiledKernel(instance_name("tiled::kernel", name, kInstance.arguments()),
                          kernel<T, kInstance.filters, kInstance.columns>);
  };
  if constexpr (std::is_same_v<T, double>) {
    return for_each_instance<kFloat64Instances>(compiled);
  } else {
    return for_each_instance<kInstances>(compiled);
  }
}

}  // namespace convswap::tiled
