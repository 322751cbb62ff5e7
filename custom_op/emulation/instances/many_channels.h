#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "compiled.h"
#include "cuda/host/kernels.h"
#include "cuda/many_channels/family.h"
#include "cuda/many_channels/kernel.cuh"
#include "cuda/many_channels/mma_kernel.cuh"
#include "cuda/many_channels/prepare_and_combine.cuh"

namespace convswap::many_channels {

// Emulated kernel instances of a format: part kPart of kParts. `name` is the format's name.
template <typename Format, std::size_t kPart, std::size_t kParts>
std::vector<CompiledKernel> kernels_for(const char* name) {
  std::vector<CompiledKernel> kernels =
      for_each_instance<kInstances, kPart, kParts>([&]<Instance kInstance>() {
        return CompiledKernel(instance_name("many_channels::kernel", name, kInstance.arguments()),
                              kernel<Format, kInstance.accumulator_tiles>);
      });
  for (CompiledKernel& each : for_each_instance<kMmaInstances, kPart, kParts>([&]<Instance kInstance>() {
         return CompiledKernel(instance_name("many_channels::mma_kernel", name, kInstance.arguments()),
                               mma_kernel<Format, kInstance.accumulator_tiles>);
       })) {
    kernels.push_back(std::move(each));
  }
  if (kPart == 0) {
    kernels.emplace_back(instance_name("many_channels::prepare", name), prepare<Format>);
    kernels.emplace_back(instance_name("many_channels::combine", name), combine<Format>);
  }
  return kernels;
}

}  // namespace convswap::many_channels
