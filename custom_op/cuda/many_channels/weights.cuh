#pragma once

// The way of the weights: prepared by a kernel of their own, in the order in which blocks then copy them to
// shared memory.

#include "cuda/many_channels/share.cuh"
#include "cuda/primitives/arrival_barrier.cuh"
#include "cuda/primitives/bulk_load.cuh"
#include "cuda/primitives/dependent_launch.cuh"
#include "cuda/primitives/ring.cuh"
#include "cuda/primitives/warpgroup_barrier.cuh"
#include "cuda/tensor_core_formats.cuh"

namespace convswap::many_channels {

// Where the prepared weights of a block of filters begin, for a chunk of a window.
template <typename Element>
__device__ inline unsigned char* prepared_chunk(const Arguments<Element>& problem, int block, int window,
                                                int chunk) {
  const long long number = (static_cast<long long>(block) * kMostWeightWindows + window) * problem.chunks;
  return problem.prepared_weights + (number + chunk) * problem.steps * problem.row_sets * kStepUnits * 16;
}

// Prepares the weights of filters, and of rows that have none: a block for each row.
template <typename Format>
__global__ void __launch_bounds__(kPreparers)
    prepare(const __grid_constant__ Arguments<typename Format::Element> problem) {
  using Element = typename Format::Element;
  wait_for_kernels_before();
  let_next_kernel_start();
  const int rows = problem.row_sets * kRows;  // of a block of filters
  const int own_row = blockIdx.x, block = own_row / rows, row = own_row - block * rows;
  const int filter_blocks = problem.blocks_of_group.divisor, group = block / filter_blocks;
  const int filter = (block - group * filter_blocks) * rows + row;  // of the group
  const bool exists = filter < problem.filters;
  const int plane_taps = problem.filter_height * problem.filter_width;
  const int taps = static_cast<int>(problem.depth_taps.divisor) * plane_taps;
  const int size = problem.channels * taps;
  const Element* const from = problem.w + (static_cast<long long>(group) * problem.filters + filter) * size;
  FilterRange found{0, 1};
  if (Format::kIsScaled && exists) {
    extern __shared__ __align__(128) unsigned char shared[];
    auto& seen = *reinterpret_cast<ValueRange<Element>*>(shared);
    if (threadIdx.x == 0) seen = {};
    __syncthreads();
    ValueRange<Element> range;
#pragma unroll 4
    for (int i = threadIdx.x; i < size; i += kPreparers) range.include(from[i]);
    range = reduce_threads(range, seen, false, [] { __syncthreads(); });
    found = {range.top(), static_cast<unsigned>(range.windows())};
    // What the scale of a lower window would leave float32 with.
    const bool is_scaled = found.top - kBinades >= kUppermost - 126;
    if (!range.is_finite() || found.windows > (is_scaled ? kMostWeightWindows : 1)) found = {0, ~0u};
  }
  if (threadIdx.x == 0) problem.filter_ranges[own_row] = found;
  const int windows = found.windows == 2 ? 2 : 1;
  const int halves = problem.chunks * problem.steps * 2;
  for (int window = 0; window < kMostWeightWindows; ++window) {
    const BinadeWindow binades(found.top - window * kBinades);
    for (int i = threadIdx.x; i < halves; i += kPreparers) {
      const int chunk = i / (problem.steps * 2), of_chunk = i - chunk * problem.steps * 2;
      const int step = of_chunk / 2, half = of_chunk % 2;
      const Chunk own_chunk(problem, chunk);
      const int tap = own_chunk.depth_tap * plane_taps + step % plane_taps;
      const int channel = own_chunk.channel + step / plane_taps * kDepth + half * kBundleChannels;
      unsigned words[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        Element pair[2];
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const int own = channel + 2 * j + c;
          pair[c] =
              exists && own < problem.channels && window < windows ? from[own * taps + tap] : Format::zero();
          if constexpr (Format::kIsScaled) {
            if (!binades.holds(pair[c])) pair[c] = Format::zero();
          }
        }
        words[j] = Format::pair(pair[0], pair[1], binades.scale(), 0);
      }
      uint4* const to = reinterpret_cast<uint4*>(prepared_chunk(problem, block, window, chunk));
      to[(step * problem.row_sets + row / kRows) * kStepUnits + half * kRows + row % kRows] =
          make_uint4(words[0], words[1], words[2], words[3]);
    }
  }
}

// How many windows the weights of blocks of filters have.
template <typename Format, typename Element = typename Format::Element>
class WeightWindows {
 public:
  // By all converters, once the weights have been prepared.
  __device__ explicit WeightWindows(const Arguments<Element>& problem) {
    if constexpr (Format::kIsScaled) {
      // The commonest case is found at once, so that nobody asks again.
      const int rows = problem.works_of_tile.divisor * problem.row_sets * kRows;
      bool are_one = rows <= kMostRowsAtOnce;
      for (int i = threadIdx.x; are_one && i < rows; i += kConverters) {
        are_one = problem.filter_ranges[i].windows == 1;
      }
      are_one_ = sync_threads_and(kConverterBarrier, kConverters, are_one);
    }
  }

  // Of one block; ~0 where its weights cannot be multiplied. By whole warps.
  __device__ unsigned of(const Arguments<Element>& problem, int block) const {
    if (!Format::kIsScaled || are_one_) [[likely]]
      return 1;
    unsigned windows = 1;
    for (int i = threadIdx.x % 32; i < problem.row_sets * kRows; i += 32) {
      windows = max(windows, problem.filter_ranges[block * problem.row_sets * kRows + i].windows);
    }
    return __reduce_max_sync(0xffffffffu, windows);
  }

 private:
  static constexpr int kMostRowsAtOnce = 16 * kConverters;
  bool are_one_ = true;
};

// Starts the copies of a chunk's weights, by one thread.
template <typename Element>
__device__ inline void copy_chunk(const Arguments<Element>& problem, int block, int window, int chunk,
                                  BlockState& state, unsigned char* stages, OpenRing& ring) {
  const unsigned char* const from = prepared_chunk(problem, block, window, chunk);
  const int step_bytes = problem.row_sets * kStepUnits * 16;
  for (int first = 0; first < problem.steps; first += problem.group_steps) {
    wait(&state.weights_multiplied[ring.stage], ring.phase ^ 1);
    bulk_load(stages + ring.stage * problem.weight_stage_bytes, from + first * step_bytes,
              min(problem.group_steps, problem.steps - first) * step_bytes,
              &state.weights_loaded[ring.stage]);
    arrive(&state.weights_loaded[ring.stage]);
    ring.advance(problem.weight_stages);
  }
}

}  // namespace convswap::many_channels
