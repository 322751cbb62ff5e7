#pragma once

#include <vector>

#include "compiled.h"
#include "cuda/few_channels/family.h"
#include "cuda/few_channels/kernel.cuh"
#include "cuda/host/kernels.h"

namespace convswap::few_channels {

// Emulated kernel instances of a format. `name` is the format's name.
template <typename Format>
std::vector<CompiledKernel> kernels_for(const char* name) {
  return for_each_instance<kInstances>([&]<Instance kInstance>() {
    return CompiledKernel(
        instance_name("few_channels::kernel", name, kInstance.arguments()),
        kernel<Format, kInstance.bundle, kInstance.taps, kInstance.accumulator_tiles, kInstance.is_nhwc>);
  });
}

}  // namespace convswap::few_channels
