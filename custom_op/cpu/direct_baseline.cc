#include "cpu/channel_lanes_kernel.h"
#include "cpu/position_lanes_kernel.h"
#include "cpu/row_lanes_kernel.h"

namespace convswap {

// A vector has 4 floats. Accumulators of 6 filters x 2 vectors take 12 of the 16 registers; the operands
// take the others.
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
