#pragma once

#include <cstddef>
#include <vector>

#include "compiled.h"
#include "conv/small_floats.h"
#include "cuda/epilogue/family.h"
#include "cuda/epilogue/kernel.cuh"
#include "cuda/host/kernels.h"

namespace convswap::epilogue {

// A part of the kernels of one element type, which is called `name`.
template <typename T, std::size_t kPart, std::size_t kParts>
std::vector<CompiledKernel> kernels_for(const char* name) {
  return for_each_instance<kInstances, kPart, kParts>([&]<Instance kOf>() {
    return CompiledKernel(instance_name("epilogue::kernel", name, kOf.arguments()), kernel<T, kOf.pools>);
  });
}

}  // namespace convswap::epilogue
