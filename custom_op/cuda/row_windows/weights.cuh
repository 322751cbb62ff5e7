#pragma once

#include "cuda/row_windows/numbers.cuh"
#include "cuda/row_windows/tile.cuh"

namespace convswap::row_windows {

// Lays out a block's weights and bias for all its bands, by the consumers, of which this is number `thread`:
// place after place along the depth those of all rows of a product. Row m is filter m % block_filters of
// output row m / block_filters of a group; what a filter does not read of a window is zeros.
template <typename Element>
__device__ inline void put_weights(const Arguments<Element>& problem, const Share& share, int thread,
                                   uint4* weights, float* bias) {
  using Of = Numbers<Element>;
  const int places = problem.steps * kPlacesOfStep;
  for (int i = thread; i < places * kRows; i += kConsumers) {
    const DepthPlace place = problem.depth[i / kRows];
    const int row = i % kRows;
    const int fold = row / problem.block_filters, filter = row - fold * problem.block_filters;
    const int down = place.row - fold * problem.stride_height;
    const int r = down / problem.dilation_height;
    const bool exists = place.channel >= 0 && fold < problem.folds && filter < share.filters && down >= 0 &&
                        r * problem.dilation_height == down && r < problem.filter_height;
    float numbers[Of::kOfWindow] = {};
    if (exists) {
      const Element* const from =
          problem.w +
          ((static_cast<long long>(share.first_filter + filter) * problem.channels + place.channel) *
               problem.filter_height +
           r) *
              problem.filter_width;
#pragma unroll
      for (int e = 0; e < Of::kOfWindow; ++e) {
        const int tap = place.tap + e;
        if (static_cast<unsigned>(tap) < static_cast<unsigned>(problem.filter_width)) {
          numbers[e] = static_cast<float>(from[tap]);
        }
      }
    }
    weights[i] = Of::window_of(numbers);
  }
  for (int i = thread; i < problem.block_filters; i += kConsumers) {
    bias[i] = problem.b != nullptr && i < share.filters
                  ? static_cast<float>(problem.b[share.first_filter + i])
                  : 0.0f;
  }
}

}  // namespace convswap::row_windows
