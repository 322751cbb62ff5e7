#include "cpu/channel_lanes_kernel.h"
#include "cpu/position_lanes_kernel.h"
#include "cpu/row_lanes_kernel.h"

namespace convswap {

// 16 floats per vector. Accumulators of 6 filters x 4 vectors leave registers for the operands, of 32.
const PositionLanesKernels& position_lanes_kernels_avx512() {
  static constexpr PositionLanesKernels kernels = kernels_for<16, 4>();
  return kernels;
}

const RowLanesKernels& row_lanes_kernels_avx512() {
  static constexpr RowLanesKernels kernels = row_lanes_kernels_for<16, 4>();
  return kernels;
}

const ChannelLanesKernels& channel_lanes_kernels_avx512() {
  static constexpr ChannelLanesKernels kernels = channel_lanes_kernels_for<16>();
  return kernels;
}

}  // namespace convswap
