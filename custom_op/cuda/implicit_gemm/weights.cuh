#pragma once

// The way of the weights: into registers of the consumers, and what finds no room there into shared
// memory.

#include "cuda/implicit_gemm/arguments.h"
#include "cuda/primitives/tensor_core_formats.cuh"
#include "cuda/primitives/warpgroup.cuh"

namespace convswap::implicit_gemm {

// Copies weights to shared memory as they are, by all threads.
template <typename Element>
__device__ inline void copy_weights(const Element* from, int count, Element* to) {
  constexpr int kOfWord = sizeof(uint4) / sizeof(Element);
  const bool are_words = reinterpret_cast<unsigned long long>(from) % sizeof(uint4) == 0;
  const int words = are_words ? count / kOfWord : 0;
#pragma unroll 8
  for (int i = threadIdx.x; i < words; i += kThreads) {
    reinterpret_cast<uint4*>(to)[i] = reinterpret_cast<const uint4*>(from)[i];
  }
#pragma unroll 8
  for (int i = words * kOfWord + threadIdx.x; i < count; i += kThreads) to[i] = from[i];
}

// A block's filters, converted by the window of binades of that number from each filter's uppermost.
template <typename Format>
struct Weights {
  using Element = typename Format::Element;
  const Element* from;  // in global or shared memory
  const int* tops;
  int filters;  // that there are
  int window;
};

// Of a row of the product two neighbours of each half step, which one consumer converts: four
// threads a row.
template <typename Format>
class RowWeights {
 public:
  using Element = typename Format::Element;

  __device__ RowWeights(const Arguments<Element>& problem, const Weights<Format>& weights)
      : binades_(0), place_(threadIdx.x - (kThreads - kConsumers)) {
    const RowOwner owner = problem.rows[place_ / 4];
    is_row_ = owner.filter >= 0 && owner.filter < weights.filters;
    const int filter = is_row_ ? owner.filter : 0;
    fold_row_ = owner.fold * problem.stride_height;
    from_ = weights.from + filter * problem.channels * problem.filter_height * problem.filter_width;
    if constexpr (Format::kIsScaled) {
      binades_ = BinadeWindow(weights.tops[filter] - weights.window * kBinades);
    }
  }

  // Writes those of some steps to shared memory.
  __device__ void stage(const Arguments<Element>& problem, int part, int first_step, int steps,
                        unsigned* to) const {
#pragma unroll 4
    for (int i = 0; i < 2 * steps; ++i) {
      to[i * kConsumers + place_] = pair(problem, problem.half_steps[2 * first_step + i], part);
    }
  }

 private:
  __device__ unsigned pair(const Arguments<Element>& problem, HalfStep half, int part) const {
    const int first = place_ % 4 * 2;
    const bool is_half = 2 * half.bundle == problem.half_chunk;
    const int pixel = is_half ? first / kChunkChannels : 0;  // of the two in a place
    // The filter's row and column that meet the input's for this fold, times the dilations.
    const int down = half.row + (problem.pairs_rows ? pixel : 0) - fold_row_;
    const int across = half.column + (problem.pairs_rows ? 0 : pixel);
    const int r = problem.dilation_height_divisor.quotient(max(0, down));
    const int s = problem.dilation_width_divisor.quotient(across);
    const bool is_tap = is_row_ && half.bundle >= 0 && r < problem.filter_height &&
                        s < problem.filter_width &&
                        r * static_cast<int>(problem.dilation_height_divisor.divisor) == down &&
                        s * static_cast<int>(problem.dilation_width_divisor.divisor) == across;
    const auto weight_at = [&](int j) -> Element {
      const int channel = half.bundle * 8 + (is_half ? j % kChunkChannels : j);
      if (!is_tap || channel >= problem.channels) return Format::zero();
      const Element value = from_[(channel * problem.filter_height + r) * problem.filter_width + s];
      if constexpr (Format::kIsScaled) return binades_.holds(value) ? value : 0.0f;
      return value;
    };
    return Format::pair(weight_at(first), weight_at(first + 1), binades_.scale(), part);
  }

  BinadeWindow binades_;
  int place_;  // of the first word
  bool is_row_;
  int fold_row_;
  const Element* from_;  // its filter
};
static_assert(kConsumers == 4 * kRows);

// The weights that a thread multiplies from its registers, of the first part.
struct HeldWeights {
  unsigned of_step[kHeldSteps][4];

  // By way of `room` in shared memory, of kStagedBytes.
  template <typename Format, typename Element = typename Format::Element>
  __device__ HeldWeights(const Arguments<Element>& problem, const RowWeights<Format>& weights,
                         unsigned* room) {
    const int lane = threadIdx.x % 32;
    const int row = threadIdx.x % 128 / 32 * 16 + lane / 4;
#pragma unroll
    for (int first = 0; first < kHeldSteps; first += kStagedSteps) {
      const int steps = max(0, min(kStagedSteps, problem.steps_held - first));
      named_barrier_sync(kConsumerBarrier, kConsumers);
      weights.stage(problem, 0, first, steps, room);
      named_barrier_sync(kConsumerBarrier, kConsumers);
#pragma unroll
      for (int i = 0; i < kStagedSteps; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const int word = ((i * 2 + j / 2) * kRows + row + j % 2 * 8) * 4 + lane % 4;
          of_step[first + i][j] = i < steps ? room[word] : 0u;
        }
      }
    }
  }
};

}  // namespace convswap::implicit_gemm
