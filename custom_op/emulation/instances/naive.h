#pragma once

#include <vector>

#include "compiled.h"
#include "conv/small_floats.h"
#include "cuda/host/kernels.h"
#include "cuda/naive/kernel.cuh"

namespace convswap::naive {

// The emulated kernel of an element type. `name` is the element type's name.
template <typename T>
std::vector<CompiledKernel> kernels_for(const char* name) {
  return {CompiledKernel(instance_name("naive::kernel", name), kernel<T>)};
}

}  // namespace convswap::naive
