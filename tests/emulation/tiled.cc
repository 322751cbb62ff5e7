// tiled on the CPU: `tiled FIRST END`, see problems.h.

#include "cuda_emulation.h"

namespace convswap::tiled {
alignas(128) float shared[emulation::kSharedBytes / sizeof(float)];  // what the kernel declares as its own
}  // namespace convswap::tiled

#include "cuda/epilogue/epilogue_kernel.cu"
#include "cuda/tiled/plan_bfloat16.cu"
#include "cuda/tiled/plan_float16.cu"
#include "cuda/tiled/plan_float32.cu"
#include "problems.h"

namespace convswap {

const Algorithm& cuda_tiled();

template <typename T>
bool is_epilogue_kernel_of(const void* kernel) {
  return kernel == reinterpret_cast<const void*>(activation_kernel<T, float>) ||
         kernel == reinterpret_cast<const void*>(pool_kernel<T, float>);
}

// Whatever the elements: pointers to them are all that differs between the arguments of the kernels.
template <typename Arguments>
void run_as(const void* kernel, dim3 grid, dim3 block, size_t shared_bytes, void** arguments) {
  const auto entry = reinterpret_cast<void (*)(Arguments)>(const_cast<void*>(kernel));
  const Arguments& own = *static_cast<const Arguments*>(arguments[0]);
  emulation::run_grid(grid, block, reinterpret_cast<unsigned char*>(tiled::shared), shared_bytes,
                      [&] { entry(own); });
}

void launch(const void* kernel, dim3 grid, dim3 block, size_t shared_bytes, void*, void** arguments, Start) {
  if (is_epilogue_kernel_of<float>(kernel) || is_epilogue_kernel_of<Float16>(kernel) ||
      is_epilogue_kernel_of<BFloat16>(kernel)) {
    run_as<EpilogueArguments<float>>(kernel, grid, block, shared_bytes, arguments);
  } else {
    run_as<tiled::Arguments<float>>(kernel, grid, block, shared_bytes, arguments);
  }
}

}  // namespace convswap

int main(int count, char** arguments) {
  return convswap::check_seeds(convswap::cuda_tiled(), count, arguments);
}
