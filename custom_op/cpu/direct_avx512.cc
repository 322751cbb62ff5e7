#include "cpu/direct_kernel.h"

namespace convswap {

// 16 floats to a vector; 6 filters x 4 vectors of sums leave room in the 32 registers for the operands.
const DirectKernels& direct_kernels_avx512() {
  static constexpr DirectKernels kernels = kernels_for<16, 4>();
  return kernels;
}

}  // namespace convswap
