// toeplitz on the CPU: `toeplitz FIRST END`, see problems.h.

#include "cuda_emulation.h"

namespace convswap::toeplitz {
alignas(128) unsigned char shared[emulation::kSharedBytes];  // what the kernel declares as its shared memory
}  // namespace convswap::toeplitz

#include "cuda/toeplitz/plan_bfloat16.cu"
#include "cuda/toeplitz/plan_float16.cu"
#include "cuda/toeplitz/plan_float32_as_scaled_float16.cu"
#include "cuda/toeplitz/plan_float32_as_two_float16.cu"
#include "problems.h"

namespace convswap {

const Algorithm& cuda_toeplitz();

void launch(const void* kernel, dim3 grid, dim3 block, size_t shared_bytes, void*, void** arguments, Start) {
  // Whatever the elements: pointers to them are all that differs between the arguments of the kernels.
  using Arguments = toeplitz::Arguments<float>;
  const auto entry = reinterpret_cast<void (*)(Arguments)>(const_cast<void*>(kernel));
  const Arguments& own = *static_cast<const Arguments*>(arguments[0]);
  emulation::run_grid(grid, block, toeplitz::shared, shared_bytes, [&] { entry(own); });
}

}  // namespace convswap

int main(int count, char** arguments) {
  return convswap::check_seeds(convswap::cuda_toeplitz(), count, arguments);
}
