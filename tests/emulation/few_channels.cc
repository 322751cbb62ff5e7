// few_channels on the CPU: `few_channels FIRST END`, see problems.h.

#include "cuda_emulation.h"

namespace convswap::few_channels {
alignas(128) unsigned char shared[emulation::kSharedBytes];  // what the kernel declares as its shared memory
}  // namespace convswap::few_channels

#include "convolution_only.h"
#include "cuda/few_channels/plan_bfloat16.cu"
#include "cuda/few_channels/plan_float16.cu"
#include "cuda/few_channels/plan_float32_as_scaled_float16.cu"
#include "cuda/few_channels/plan_float32_as_two_float16.cu"
#include "problems.h"

namespace convswap {

const Algorithm& cuda_few_channels();

void launch(const void* kernel, dim3 grid, dim3 block, size_t shared_bytes, void*, void** arguments, Start) {
  run_own_or_epilogue<few_channels::Arguments<float>>(kernel, grid, block, few_channels::shared, shared_bytes,
                                                      arguments);
}

}  // namespace convswap

int main(int count, char** arguments) {
  return convswap::check_seeds(convswap::cuda_few_channels(), count, arguments);
}
