#pragma once

#include <utility>
#include <vector>

#include "compiled.h"
#include "cuda/host/kernels.h"
#include "cuda/many_channels/family.h"
#include "cuda/many_channels/kernel.cuh"
#include "cuda/many_channels/mma_kernel.cuh"
#include "cuda/many_channels/prepare_and_combine.cuh"

namespace convswap::many_channels {

// Emulated kernel instances of a format. `name` is the format's name.
template <typename Format>
std::vector<CompiledKernel> kernels_for(const char* name) {
  std::vector<CompiledKernel> kernels = for_each_instance<kInstances>([&]<Instance kInstance>() {
    return CompiledKernel(instance_name("many_channels::kernel", name, kInstance.arguments()),
                          kernel<Format, kInstance.accumulator_tiles>);
  });
  for (CompiledKernel& each : for_each_instance<kMmaInstances>([&]<Instance kInstance>() {
         return CompiledKernel(instance_name("many_channels::mma_kernel", name, kInstance.arguments()),
                               mma_kernel<Format, kInstance.accumulator_tiles>);
       })) {
    kernels.push_back(std::move(each));
  }
  kernels.emplace_back(instance_name("many_channels::prepare", name), prepare<Format>);
  kernels.emplace_back(instance_name("many_channels::combine", name), combine<Format>);
  return kernels;
}

}  // namespace convswap::many_channels
