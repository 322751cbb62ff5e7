#pragma once

#include <utility>
#include <vector>

#include "compiled.h"
#include "cuda/channels_last/family.h"
#include "cuda/channels_last/kernel.cuh"
#include "cuda/host/kernels.h"
#include "instances/pool.h"

namespace convswap::channels_last {

// Emulated kernel instances of an element type. `name` is the type's name.
template <typename Element>
std::vector<CompiledKernel> kernels_for(const char* name) {
  constexpr ElementType kType = sizeof(Element) == sizeof(float) ? ElementType::float32
                                : kIsCode<Element>               ? ElementType::int8
                                                                 : ElementType::float16;
  std::vector<CompiledKernel> kernels = for_each_instance<kInstances>([&]<Instance kInstance>() {
    // No type has all instances.
    if constexpr (!kInstance.computes(kType)) {
      return CompiledKernel("", static_cast<void (*)(Arguments<Element>)>(nullptr));
    } else {
      return CompiledKernel(instance_name("channels_last::kernel", name, kInstance.arguments()),
                            kernel<Element, kInstance.accumulator_tiles, kInstance.shares_pixels,
                                   kInstance.splits_k, 1, kInstance.parts>);
    }
  });
  kernels.emplace_back(instance_name("channels_last::prepare", name), prepare<Element>);
  kernels.emplace_back(instance_name("channels_last::unaligned", name), unaligned<Element>);
  if constexpr (kIsCode<Element>) {
    kernels.emplace_back(instance_name("channels_last::sum_padding", name), sum_padding<Element>);
    kernels.emplace_back(instance_name("channels_last::write_windows", name), write_windows<Element>);
    for (CompiledKernel& pool : pool_kernels_for<Element>(name)) kernels.push_back(std::move(pool));
  }
  return kernels;
}

}  // namespace convswap::channels_last
