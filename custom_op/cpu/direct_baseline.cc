#include "cpu/channel_lanes_kernel.h"
#include "cpu/position_lanes_kernel.h"
#include "cpu/row_lanes_kernel.h"

namespace convswap {

// 4 floats per vector. Accumulators of 6 filters x 2 vectors leave registers for the operands, of 16.
const PositionLanesKernels& position_lanes_kernels_baseline() {
  static constexpr PositionLanesKernels kernels = kernels_for<4, 2>();
  return kernels;
}

const RowLanesKernels& row_lanes_kernels_baseline() {
  static constexpr RowLanesKernels kernels = row_lanes_kernels_for<4, 2>();
  return kernels;
}

const ChannelLanesKernels& channel_lanes_kernels_baseline() {
  static constexpr ChannelLanesKernels kernels = channel_lanes_kernels_for<4>();
  return kernels;
}

}  // namespace convswap
