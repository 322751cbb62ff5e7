#pragma once

#include <type_traits>
#include <utility>
#include <vector>

#include "compiled.h"
#include "cuda/channels_last_mma/family.h"
#include "cuda/channels_last_mma/kernel.cuh"
#include "cuda/channels_last_mma/kernel_75.cuh"
#include "cuda/channels_last_mma/prepare.cuh"
#include "cuda/host/kernels.h"

namespace convswap::channels_last_mma {

// Emulated kernel instances of an element type. `name` is the type's name.
template <typename Element>
std::vector<CompiledKernel> kernels_for(const char* name) {
  std::vector<CompiledKernel> kernels = for_each_instance<kInstances>([&]<Instance kInstance>() {
    return CompiledKernel(instance_name("channels_last_mma::kernel", name, kInstance.arguments()),
                          kernel<Element, kInstance.positions, kInstance.filters, kInstance.position_warps,
                                 kInstance.filter_warps>);
  });
  if constexpr (kIsCode<Element> || std::is_same_v<Element, Float16>) {
    for (CompiledKernel& kernel : for_each_instance<kInstances75>([&]<Instance kInstance>() {
           return CompiledKernel(instance_name(kInstance.kernel(), name, kInstance.arguments()),
                                 kernel_75<Element, kInstance.positions, kInstance.filters,
                                           kInstance.position_warps, kInstance.filter_warps>);
         })) {
      kernels.push_back(std::move(kernel));
    }
  }
  kernels.emplace_back(instance_name("channels_last_mma::prepare", name), prepare<Element>);
  kernels.emplace_back(instance_name("channels_last_mma::unaligned", name), unaligned<Element>);
  if constexpr (kIsCode<Element>) {
    kernels.emplace_back(instance_name("channels_last_mma::prepare_codes", name), prepare_codes<Element>);
  }
  return kernels;
}

}  // namespace convswap::channels_last_mma
