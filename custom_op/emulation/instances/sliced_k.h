#pragma once

#include <vector>

#include "compiled.h"
#include "conv/small_floats.h"
#include "cuda/host/kernels.h"
#include "cuda/sliced_k/family.h"
#include "cuda/sliced_k/kernel.cuh"

namespace convswap::sliced_k {

// Emulated kernel instances of a format. `name` is the format's name.
template <typename Format>
std::vector<CompiledKernel> kernels_for(const char* name) {
  return for_each_instance<kInstances>([&]<Instance kInstance>() {
    return CompiledKernel(
        instance_name("sliced_k::kernel", name, kInstance.arguments()),
        kernel<Format, kInstance.one_tap, kInstance.filter_tiles, kInstance.pixel_tiles, kInstance.warps>);
  });
}

}  // namespace convswap::sliced_k
