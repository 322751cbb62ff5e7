#pragma once

#include "cuda/pointwise/arguments.h"
#include "cuda/pointwise/numbers.cuh"
#include "cuda/primitives/async_copy.cuh"
#include "cuda/primitives/tma.cuh"

namespace convswap::pointwise {

// A block's filters, for all its tiles: weights as the tensor core takes them, core after core of channels
// those of all filters, then the bias.
template <int kFilters>
struct Filters {
  uint4* weights;
  float* bias;

  // Starts the copies of the weights, which are one group of each thread. `first`: of the group, and of all.
  template <typename Element>
  __device__ void start_copies(const Arguments<Element>& problem, int cores, int first,
                               int first_of_all) const {
    using Of = Numbers<Element>;
    constexpr int kCore = kCoreBytes / sizeof(Element);
    const bool are_whole =
        problem.channels % kCore == 0 && reinterpret_cast<unsigned long long>(problem.w) % kCoreBytes == 0;
    for_each(cores, [&](int core, int filter, uint4& to) {
      const Element* const from =
          problem.w + static_cast<long long>(first_of_all + filter) * problem.channels + core * kCore;
      const int left = first + filter < problem.filters ? problem.channels - core * kCore : 0;
      if (!are_whole) {
        to = make_uint4(Of::word_at(from, left, 0), Of::word_at(from, left, 1), Of::word_at(from, left, 2),
                        Of::word_at(from, left, 3));
      } else if (left > 0) {
        copy_async_16_bytes(&to, from);
      } else {
        to = make_uint4(0u, 0u, 0u, 0u);
      }
    });
    commit_copies();
  }

  // Of the thread's filter, where it has one.
  template <typename Element>
  static __device__ Element bias_of_thread(const Arguments<Element>& problem, int first, int first_of_all) {
    const int own = static_cast<int>(threadIdx.x);
    const bool is_there = own < kFilters && first + own < problem.filters && problem.b != nullptr;
    return is_there ? problem.b[first_of_all + own] : Element(0.0f);
  }

  // Waits for the copies, behind which the thread has started kLater groups, and has the block meet.
  template <int kLater, typename Element>
  __device__ void finish(int cores, Element bias_of_own) const {
    using Of = Numbers<Element>;
    if (threadIdx.x < kFilters) bias[threadIdx.x] = static_cast<float>(bias_of_own);
    wait_for_copies<kLater>();
    if constexpr (Of::kRoundsWeights) {
      for_each(cores, [](int, int, uint4& own) {
        own = make_uint4(Of::of_weights(own.x), Of::of_weights(own.y), Of::of_weights(own.z),
                         Of::of_weights(own.w));
      });
    }
    show_to_copies_and_products();
    __syncthreads();
  }

 private:
  // Calls back with a thread's cores of filters. A warp has four cores, 64 bytes, of eight filters, which go
  // to as many different banks at a time.
  template <typename Call>
  __device__ void for_each(int cores, const Call& call) const {
    constexpr int kAcross = 4, kDown = 8;
    static_assert(kFilters % kDown == 0);
    for (int i = threadIdx.x; i < cores * kFilters; i += blockDim.x) {
      const int rest = i / (kAcross * kDown);
      const int core = rest / (kFilters / kDown) * kAcross + i / kDown % kAcross;
      const int filter = rest % (kFilters / kDown) * kDown + i % kDown;
      call(core, filter, weights[core * kFilters + filter]);
    }
  }
};

}  // namespace convswap::pointwise
