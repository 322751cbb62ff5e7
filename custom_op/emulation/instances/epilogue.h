#pragma once

#include <cstddef>
#include <vector>

#include "compiled.h"
#include "conv/small_floats.h"
#include "cuda/epilogue/family.h"
#include "cuda/epilogue/kernel.cuh"
#include "cuda/host/kernels.h"

namespace convswap::epilogue {

// Emulated kernel instances of an element type: part kPart of kParts. `name` is the element type's name.
template <typename T, std::size_t kPart, std::size_t kParts>
std::vector<CompiledKernel> kernels_for(const char* name) {
  return for_each_instance<kInstances, kPart, kParts>([&]<Instance kInstance>() {
    return CompiledKernel(instance_name("epilogue::kernel", name, kInstance.arguments()),
                          kernel<T, kInstance.pools, kInstance.has_vectors>);
  });
}

}  // namespace convswap::epilogue
