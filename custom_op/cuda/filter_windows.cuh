#pragma once

#include "cuda/tensor_core_formats.cuh"

namespace convswap {

// Finds how large the weights of each of some filters are, one filter to a warp of the block: their uppermost
// binade into `tops`, and into `windows` the most windows of binades that one spans, ~0 where one is not
// finite. `weights_of(filter)` is where its `size` weights begin.
template <typename Format, typename WeightsOf, typename Element = typename Format::Element>
__device__ inline void measure_filters(WeightsOf weights_of, int filters, int size, int* tops,
                                       unsigned* windows) {
  for (int filter = threadIdx.x / 32; filter < filters; filter += blockDim.x / 32) {
    const Element* const weights = weights_of(filter);
    ValueRange<Element> range;
    for (int i = threadIdx.x % 32; i < size; i += 32) range.include(weights[i]);
    range.reduce_warp();
    if (threadIdx.x % 32 != 0) continue;
    const bool is_finite = range.is_finite();
    tops[filter] = Format::kIsScaled && is_finite ? range.top() : 0;
    atomicMax(windows, !is_finite ? ~0u : Format::kIsScaled ? range.windows() : 1u);
  }
}

}  // namespace convswap
