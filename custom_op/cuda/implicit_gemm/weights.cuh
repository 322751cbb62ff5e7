#pragma once

// The way of the weights: into registers of those who multiply, and what finds no room there into shared
// memory.

#include "cuda/filter_windows.cuh"
#include "cuda/implicit_gemm/arguments.h"
#include "cuda/primitives/team_barrier.cuh"
#include "cuda/tensor_core_formats.cuh"

namespace convswap::implicit_gemm {

// A block's filters, converted by the window of binades of that number from each filter's uppermost.
template <typename Format>
struct Weights {
  using Element = typename Format::Element;
  const Element* from;  // in global or shared memory
  const int* tops;
  int filters;  // that there are
  int window;

  // Two neighbours along the depth, of a row of the product.
  __device__ unsigned pair(const Arguments<Element>& problem, int row, HalfStep half, int first,
                           int part) const {
    const RowOwner owner = problem.rows[row];
    if (half.bundle < 0 || owner.filter < 0 || owner.filter >= filters) return 0u;
    // The filter's row that meets the input's row for this fold, times the dilation.
    const int down = half.row - owner.fold * problem.stride_height;
    if (down < 0) return 0u;
    const int r = problem.dilation_height.quotient(down);
    if (r >= problem.filter_height || r * static_cast<int>(problem.dilation_height.divisor) != down) {
      return 0u;
    }
    const bool is_half = 2 * half.bundle == problem.half_chunk;
    const BinadeWindow binades(Format::kIsScaled ? tops[owner.filter] - window * kBinades : 0);
    const auto weight_at = [&](int j) -> Element {
      const int channel = half.bundle * 8 + (is_half ? j % kChunkChannels : j);
      const int across = half.column + (is_half ? j / kChunkChannels : 0);
      const int s = problem.dilation_width.quotient(across);
      if (channel >= problem.channels || s >= problem.filter_width ||
          s * static_cast<int>(problem.dilation_width.divisor) != across) {
        return Format::zero();
      }
      const Element value =
          from[((owner.filter * problem.channels + channel) * problem.filter_height + r) *
                   problem.filter_width +
               s];
      if constexpr (Format::kIsScaled) return binades.holds(value) ? value : 0.0f;
      return value;
    };
    return Format::pair(weight_at(first), weight_at(first + 1), binades.scale(), part);
  }
};

// Writes those of some steps to shared memory, by all who multiply.
template <typename Format, typename Element = typename Format::Element>
__device__ inline void stage_weights(const Arguments<Element>& problem, const Weights<Format>& weights,
                                     int part, int first_step, int steps, unsigned* to) {
#pragma unroll 2
  for (int i = threadIdx.x - (kThreads - kMultipliers); i < steps * kStepUnits * 4; i += kMultipliers) {
    const int first = i % 4 * 2;
    const int row = i / 4 % kRows;
    const int half = i / (4 * kRows) % 2;
    const int step = first_step + i / (kStepUnits * 4);
    to[i] = weights.pair(problem, row, problem.half_steps[2 * step + half], first, part);
  }
}

// The weights that a thread multiplies from its registers, of the first part.
struct HeldWeights {
  unsigned of_step[kHeldSteps][4];

  // By way of `room` in shared memory, of kStagedBytes.
  template <typename Format, typename Element = typename Format::Element>
  __device__ HeldWeights(const Arguments<Element>& problem, const Weights<Format>& weights, unsigned* room) {
    const int lane = threadIdx.x % 32;
    const int row = threadIdx.x % 128 / 32 * 16 + lane / 4;
#pragma unroll
    for (int first = 0; first < kHeldSteps; first += kStagedSteps) {
      const int steps = max(0, min(kStagedSteps, problem.steps_held - first));
      meet_threads(kMultipliersMeet, kMultipliers);
      stage_weights(problem, weights, 0, first, steps, room);
      meet_threads(kMultipliersMeet, kMultipliers);
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
