#pragma once

// Launches, on the CPU, of an algorithm that leaves what follows a convolution to a second kernel. Included
// after the kernels.

#include "cuda/epilogue/epilogue_kernel.cu"
#include "cuda_emulation.h"

namespace convswap {

template <typename T>
bool is_epilogue_kernel_of(const void* kernel) {
  return kernel == reinterpret_cast<const void*>(activation_kernel<T, float>) ||
         kernel == reinterpret_cast<const void*>(pool_kernel<T, float>);
}

// Whatever the elements: pointers to them are all that differs between the arguments of the kernels.
template <typename Arguments>
void run_as(const void* kernel, dim3 grid, dim3 block, unsigned char* shared, size_t shared_bytes,
            void** arguments) {
  const auto entry = reinterpret_cast<void (*)(Arguments)>(const_cast<void*>(kernel));
  const Arguments& own = *static_cast<const Arguments*>(arguments[0]);
  emulation::run_grid(grid, block, shared, shared_bytes, [&] { entry(own); });
}

// Arguments: of the algorithm's own kernel.
template <typename Arguments>
void run_own_or_epilogue(const void* kernel, dim3 grid, dim3 block, unsigned char* shared,
                         size_t shared_bytes, void** arguments) {
  if (is_epilogue_kernel_of<float>(kernel) || is_epilogue_kernel_of<Float16>(kernel) ||
      is_epilogue_kernel_of<BFloat16>(kernel)) {
    run_as<EpilogueArguments<float>>(kernel, grid, block, shared, shared_bytes, arguments);
  } else {
    run_as<Arguments>(kernel, grid, block, shared, shared_bytes, arguments);
  }
}

}  // namespace convswap
