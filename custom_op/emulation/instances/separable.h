#pragma once

#include <cstddef>
#include <vector>

#include "compiled.h"
#include "conv/small_floats.h"
#include "cuda/host/kernels.h"
#include "cuda/separable/family.h"
#include "cuda/separable/kernel.cuh"

namespace convswap::separable {

// Part kPart of kParts of the kernels of the element type `name`.
template <typename T, std::size_t kPart, std::size_t kParts>
std::vector<CompiledKernel> kernels_for(const char* name) {
  return for_each_instance<kInstances, kPart, kParts>([&]<Instance kOf>() {
    return CompiledKernel(instance_name("separable::kernel", name, kOf.arguments()),
                          kernel<T, kOf.stride, kOf.filter_tiles, kOf.rows, kOf.down, kOf.across>);
  });
}

}  // namespace convswap::separable
