#pragma once

// The way of the weights: prepared by a kernel of their own, in the order in which blocks then copy them to
// shared memory.

#include "cuda/many_channels/share.cuh"
#include "cuda/primitives/mbarrier.cuh"
#include "cuda/primitives/ring.cuh"
#include "cuda/primitives/tensor_core_formats.cuh"
#include "cuda/primitives/tma.cuh"
#include "cuda/primitives/warpgroup.cuh"

namespace convswap::many_channels {

// Where the prepared weights of a block of filters begin, for a chunk of a window.
template <typename Element>
__device__ inline unsigned char* prepared_chunk(const Arguments<Element>& problem, int block, int window,
                                                int chunk) {
  const long long number = (static_cast<long long>(block) * kMostWeightWindows + window) * problem.chunks;
  return problem.prepared_weights + (number + chunk) * problem.steps * kStepUnits * 16;
}

// Prepares the weights of a filter, or of a row that has none: by a block.
template <typename Format, typename Element = typename Format::Element>
__device__ inline void prepare_row(const Arguments<Element>& problem, int own_row, PreparedState& state) {
  const int block = own_row / kRows, row = own_row % kRows;
  const int filter_blocks = problem.blocks_of_group.divisor, group = block / filter_blocks;
  const int filter = (block - group * filter_blocks) * kRows + row;  // of the group
  const bool exists = filter < problem.filters;
  const int plane_taps = problem.filter_height * problem.filter_width;
  const int taps = static_cast<int>(problem.depth_taps.divisor) * plane_taps;
  const int size = problem.channels * taps;
  const Element* const from = problem.w + (static_cast<long long>(group) * problem.filters + filter) * size;
  FilterRange found{0, 1};
  if (Format::kIsScaled && exists) {
    ValueRange<Element> range;
#pragma unroll 4
    for (int i = threadIdx.x; i < size; i += kPreparers) range.include(from[i]);
    range = reduce_threads(range, state, false, [] { __syncthreads(); });
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
      to[step * kStepUnits + half * kRows + row] = make_uint4(words[0], words[1], words[2], words[3]);
    }
  }
}

// How many windows the weights of a block of filters have; ~0 where they cannot be multiplied. By whole
// warps.
template <typename Format, typename Element = typename Format::Element>
__device__ inline unsigned weight_windows(const Arguments<Element>& problem, int block) {
  if (!Format::kIsScaled) return 1;
  const FilterRange* const ranges = problem.filter_ranges + block * kRows + threadIdx.x % 32;
  return __reduce_max_sync(~0u, max(ranges[0].windows, ranges[32].windows));
}

// Has the weights of chunks, from one on, copied as far ahead as there is room: by a warp.
template <typename Element>
__device__ inline void copy_weights(const Arguments<Element>& problem, int block, int window, int chunk,
                                    int chunks, OpenRing& ring) {
  BlockState& state = state_of_block(problem);
  const unsigned char* from = prepared_chunk(problem, block, window, chunk);
  constexpr int kStepBytes = kStepUnits * 16;
  for (; chunks > 0; --chunks) {
    for (int left = problem.steps; left > 0; left -= problem.group_steps) {
      const int bytes = min(problem.group_steps, left) * kStepBytes;
      wait(&state.weights_multiplied[ring.stage], ring.phase ^ 1);
      if (is_elected()) {
        TransactionBarrier* const loaded = &state.weights_loaded[ring.stage];
        arrive_for_loads(loaded, bytes);
        start_load(weight_stage(problem, ring.stage), from, bytes, loaded);
      }
      from += bytes;
      ring.advance(problem.weight_stages);
    }
  }
}

}  // namespace convswap::many_channels
