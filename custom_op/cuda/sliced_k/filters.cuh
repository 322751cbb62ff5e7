#pragma once

#include "cuda/primitives/global_memory.cuh"
#include "cuda/sliced_k/layout.h"
#include "cuda/sliced_k/numbers.cuh"

namespace convswap::sliced_k {

// A lane's filters of a block, eight apart, whose numbers it loads step by step.
template <typename Format, int kFilterTiles>
class Filters {
 public:
  using Of = Numbers<Format>;
  using Element = typename Of::Element;
  static constexpr int kCount = 2 * kFilterTiles;
  using Step = typename Of::Neighbours[kCount];

  // `first`: the block's first filter in its group, of which `a` has so many filters, and of these their
  // depth.
  template <typename Arguments>
  __device__ Filters(const Arguments& a, int group, int first, int lane)
      : depth_(a.depth),
        quarter_(lane % 4 * 4),
        together_(a.loads_weights_together),
        left_(a.filters - first - lane / 4),
        own_(global_address(a.w) +
             (static_cast<long long>(group * a.filters + first + lane / 4) * a.depth + lane % 4 * 4) *
                 static_cast<int>(sizeof(Element))) {}

  __device__ void load(int step, Step& to) const {
    if (together_) {
      load_as<true>(step, to);
    } else {
      load_as<false>(step, to);
    }
  }

 private:
  template <bool kTogether>
  __device__ void load_as(int step, Step& to) const {
    const int at = step * kStepDepth + quarter_;
    const unsigned long long from = own_ + step * (kStepDepth * static_cast<int>(sizeof(Element)));
    const unsigned row = depth_ * static_cast<unsigned>(sizeof(Element));
#pragma unroll
    for (int f = 0; f < kCount; ++f) {
      const unsigned long long of_filter = address_beyond(from, f * 8, row);
      const bool is_there = f * 8 < left_;
      if constexpr (kTogether) {
        to[f] = {};
        load_global_if(is_there && at < depth_, of_filter, to[f]);
      } else {
        unsigned words[4] = {};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          Of::load_one(is_there && at + i < depth_, of_filter + i * sizeof(Element), words[i]);
        }
        to[f] = Of::joined(words);
      }
    }
  }

  int depth_, quarter_;
  bool together_;
  int left_;  // filters of the group from the lane's first on
  unsigned long long own_;
};

}  // namespace convswap::sliced_k
