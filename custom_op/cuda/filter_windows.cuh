#pragma once

#include "cuda/tensor_core_formats.cuh"

namespace convswap {

// Finds how large the weights of each of some filters are, one filter to a warp of the block: their uppermost
// binade into `tops`, and into `windows` the most windows of binades that one spans, ~0 where one is not
// finite. `weights_of(filter)` is where its `size` weights begin. kIsRare: short code is worth more than
// speed; few_channels, which seldom comes here, took 1 to 2 % longer at batch 64 with what the compiler makes
// of it.
template <typename Format, bool kIsRare = false, typename WeightsOf = void,
          typename Element = typename Format::Element>
__device__ inline void measure_filters(WeightsOf weights_of, int filters, int size, int* tops,
                                       unsigned* windows) {
  for (int filter = threadIdx.x / 32; filter < filters; filter += blockDim.x / 32) {
    const Element* const weights = weights_of(filter);
    ValueRange<Element> range;
    if constexpr (kIsRare) {
#pragma unroll 4
      for (int i = threadIdx.x % 32; i < size; i += 32) range.include(weights[i]);
    } else {
      for (int i = threadIdx.x % 32; i < size; i += 32) range.include(weights[i]);
    }
    range.reduce_warp();
    if (threadIdx.x % 32 != 0) continue;
    const bool is_finite = range.is_finite();
    tops[filter] = Format::kIsScaled && is_finite ? range.top() : 0;
    atomicMax(windows, !is_finite ? ~0u : Format::kIsScaled ? range.windows() : 1u);
  }
}

}  // namespace convswap
