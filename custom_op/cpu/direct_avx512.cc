#include "cpu/channel_lanes_kernel.h"
#include "cpu/position_lanes_kernel.h"
#include "cpu/row_lanes_kernel.h"

namespace convswap {

// A vector has 16 floats. Accumulators of 6 filters x 4 vectors take 24 of the 32 registers; the operands
// take the others.
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
