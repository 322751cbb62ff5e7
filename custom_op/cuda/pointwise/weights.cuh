#pragma once

#include "cuda/pointwise/arguments.h"
#include "cuda/pointwise/numbers.cuh"
#include "cuda/primitives/bulk_store.cuh"

namespace convswap::pointwise {

// A block's filters, for all its tiles: weights as the tensor core takes them, core after core of channels
// those of all filters, then the bias.
template <int kFilters>
struct Filters {
  uint4* weights;
  float* bias;

  // By the block. `first`: of the group, and of all.
  template <typename Element>
  __device__ void load(const Arguments<Element>& problem, int cores, int first, int first_of_all) const {
    using Of = Numbers<Element>;
    constexpr int kCore = kCoreBytes / sizeof(Element);
    const bool are_whole =
        problem.channels % kCore == 0 && reinterpret_cast<unsigned long long>(problem.w) % kCoreBytes == 0;
    // Eight of a thread's loads at once: nothing can be multiplied before the weights are there.
#pragma unroll 8
    for (int i = threadIdx.x; i < cores * kFilters; i += blockDim.x) {
      const int core = i / kFilters, filter = i % kFilters;
      const Element* const from =
          problem.w + static_cast<long long>(first_of_all + filter) * problem.channels + core * kCore;
      const int left = first + filter < problem.filters ? problem.channels - core * kCore : 0;
      uint4 words = make_uint4(0u, 0u, 0u, 0u);
      if (are_whole) {
        if (left > 0) words = *reinterpret_cast<const uint4*>(from);
      } else {
        words = make_uint4(Of::word_at(from, left, 0), Of::word_at(from, left, 1), Of::word_at(from, left, 2),
                           Of::word_at(from, left, 3));
      }
      weights[i] = make_uint4(Of::of_weights(words.x), Of::of_weights(words.y), Of::of_weights(words.z),
                              Of::of_weights(words.w));
    }
    for (int i = threadIdx.x; i < kFilters; i += blockDim.x) {
      bias[i] = problem.b != nullptr && first + i < problem.filters
                    ? static_cast<float>(problem.b[first_of_all + i])
                    : 0.0f;
    }
    show_to_copies_and_products();
  }
};

}  // namespace convswap::pointwise
