#pragma once

#include <cstddef>
#include <vector>

#include "compiled.h"
#include "conv/small_floats.h"
#include "cuda/depthwise/family.h"
#include "cuda/depthwise/kernel.cuh"
#include "cuda/host/kernels.h"

namespace convswap::depthwise {

// A part of the kernels of an element type, which is called `name`.
template <typename T, std::size_t kPart, std::size_t kParts>
std::vector<CompiledKernel> kernels_for(const char* name) {
  return for_each_instance<kInstances, kPart, kParts>([&]<Instance kOf>() {
    return CompiledKernel(instance_name("depthwise::kernel", name, kOf.arguments()),
                          kernel<T, kOf.rows, kOf.width, kOf.slides>);
  });
}

}  // namespace convswap::depthwise
