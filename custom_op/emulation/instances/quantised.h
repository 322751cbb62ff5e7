#pragma once

#include <cstddef>
#include <vector>

#include "compiled.h"
#include "conv/small_floats.h"
#include "cuda/host/kernels.h"
#include "cuda/quantised/kernel.cuh"

namespace convswap::quantised {

// The emulated kernel of an element type. `name` is the element type's name.
template <typename T, std::size_t kPart, std::size_t kParts>
std::vector<CompiledKernel> kernels_for(const char* name) {
  return {CompiledKernel(instance_name("quantised::kernel", name), kernel<T>)};
}

}  // namespace convswap::quantised
