#pragma once

#include <cstddef>
#include <vector>

#include "compiled.h"
#include "conv/small_floats.h"
#include "cuda/host/kernels.h"
#include "cuda/sliced_k/family.h"
#include "cuda/sliced_k/kernel.cuh"

namespace convswap::sliced_k {

// Part kPart of kParts of the kernels of the format `name`.
template <typename Format, std::size_t kPart, std::size_t kParts>
std::vector<CompiledKernel> kernels_for(const char* name) {
  return for_each_instance<kInstances, kPart, kParts>([&]<Instance kOf>() {
    return CompiledKernel(instance_name("sliced_k::kernel", name, kOf.arguments()),
                          kernel<Format, kOf.one_tap, kOf.filter_tiles, kOf.pixel_tiles, kOf.warps>);
  });
}

}  // namespace convswap::sliced_k
