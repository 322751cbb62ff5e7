// implicit_gemm on the CPU: `implicit_gemm FIRST END`, see problems.h.

#include "cuda_emulation.h"

namespace convswap::implicit_gemm {
alignas(128) unsigned char shared[emulation::kSharedBytes];  // what the kernel declares as its shared memory
}  // namespace convswap::implicit_gemm

#include "convolution_only.h"
#include "cuda/implicit_gemm/plan_bfloat16.cu"
#include "cuda/implicit_gemm/plan_float16.cu"
#include "cuda/implicit_gemm/plan_float32_as_scaled_float16.cu"
#include "cuda/implicit_gemm/plan_float32_as_two_float16.cu"
#include "problems.h"

namespace convswap {

const Algorithm& cuda_implicit_gemm();

void launch(const void* kernel, dim3 grid, dim3 block, size_t shared_bytes, void*, void** arguments, Start) {
  run_own_or_epilogue<implicit_gemm::Arguments<float>>(kernel, grid, block, implicit_gemm::shared,
                                                       shared_bytes, arguments);
}

}  // namespace convswap

int main(int count, char** arguments) {
  return convswap::check_seeds(convswap::cuda_implicit_gemm(), count, arguments);
}
