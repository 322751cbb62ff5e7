#pragma once

#include <vector>

#include "compiled.h"
#include "cuda/host/kernels.h"
#include "cuda/row_windows/kernel.cuh"

namespace convswap::row_windows {

// The emulated kernel of an element type. `name` is the element type's name.
template <typename Element>
std::vector<CompiledKernel> kernels_for(const char* name) {
  return {CompiledKernel(instance_name("row_windows::kernel", name), kernel<Element>)};
}

}  // namespace convswap::row_windows
