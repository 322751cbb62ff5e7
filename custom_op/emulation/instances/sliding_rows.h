#pragma once

#include <cstddef>
#include <vector>

#include "compiled.h"
#include "conv/small_floats.h"
#include "cuda/host/kernels.h"
#include "cuda/sliding_rows/family.h"
#include "cuda/sliding_rows/kernel.cuh"

namespace convswap::sliding_rows {

// A part of the kernels of an element type, which is called `name`.
template <typename T, std::size_t kPart, std::size_t kParts>
std::vector<CompiledKernel> kernels_for(const char* name) {
  return for_each_instance<kInstances, kPart, kParts>([&]<Instance kOf>() {
    return CompiledKernel(instance_name("sliding_rows::kernel", name, kOf.arguments()),
                          kernel<T, kOf.taps, kOf.stride, kOf.left, kOf.outputs, kOf.together>);
  });
}

}  // namespace convswap::sliding_rows
