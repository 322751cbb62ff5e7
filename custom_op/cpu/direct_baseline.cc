#include "cpu/direct_kernel.h"

namespace convswap {

// 4 floats to a vector; 6 filters x 2 vectors of sums leave room in the 16 registers for the operands.
const DirectKernels& direct_kernels_baseline() {
  static constexpr DirectKernels kernels = kernels_for<4, 2>();
  return kernels;
}

}  // namespace convswap
