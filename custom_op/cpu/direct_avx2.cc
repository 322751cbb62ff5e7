#include "cpu/direct_kernel.h"

namespace convswap {

// 8 floats to a vector; 6 filters x 2 vectors of sums leave room in the 16 registers for the operands.
const DirectKernels& direct_kernels_avx2() {
  static constexpr DirectKernels kernels = kernels_for<8, 2>();
  return kernels;
}

}  // namespace convswap
