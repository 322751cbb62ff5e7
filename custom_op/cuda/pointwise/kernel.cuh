#pragma once

// The kernel of the algorithm `pointwise`; pointwise.cc tells the idea.

#include "cuda/pointwise/arguments.h"
#include "cuda/pointwise/layout.h"
#include "cuda/pointwise/numbers.cuh"
#include "cuda/pointwise/pixels.cuh"
#include "cuda/pointwise/results.cuh"
#include "cuda/pointwise/waiting.cuh"
#include "cuda/pointwise/weights.cuh"
#include "cuda/primitives/dependent_launch.cuh"
#include "cuda/primitives/warpgroup.cuh"
#include "cuda/primitives/warpgroup_multiply.cuh"

namespace convswap::pointwise {

// Blocks stay; a row of the grid has the filters of a block of a group, whose warpgroups take tiles in turns.
template <typename Element, int kTiles, int kWarpgroups, int kSteps, int kSlots>
__global__ void __launch_bounds__(128 * kWarpgroups, 1)
    kernel(const __grid_constant__ Arguments<Element> problem) {
#if defined(__CUDA_ARCH__) && !defined(__CUDA_ARCH_FEAT_SM90_ALL)
#error "pointwise has code for compute capability 9.0 alone: compile it for sm_90a"
#else
  constexpr int kFilters = kTiles * kTileFilters;
  static_assert(kFilters <= 128 * kWarpgroups);  // a thread has each bias
  constexpr int kCoresOfStep = kDepthBytes / kCoreBytes;
  extern __shared__ __align__(128) unsigned char shared[];
  const int cores = problem.chunks * kSteps * kCoresOfStep;
  const Filters<kFilters> filters{reinterpret_cast<uint4*>(shared),
                                  reinterpret_cast<float*>(shared + cores * kFilters * kCoreBytes)};
  const int group = problem.blocks_of_group.quotient_of_any(blockIdx.y);
  const int first = (blockIdx.y - group * static_cast<int>(problem.blocks_of_group.divisor)) * kFilters;
  const int first_of_all = group * problem.filters + first;
  wait_for_weights(problem.weights_stay);
  filters.start_copies(problem, cores, first, first_of_all);
  wait_for_kernels_before();
  let_next_kernel_start();
  const Element bias = filters.bias_of_thread(problem, first, first_of_all);
  const int stride = gridDim.x * kWarpgroups;
  int tile = blockIdx.x * kWarpgroups + warpgroup_of_block();
  const ThreadPixels own(problem.stores_pairs);
  ChunkLoader<Element, kSteps> loader(problem, own, group, tile, stride);
  const SharedMatrix all_weights = SharedMatrix::at(filters.weights, kFilters).of_warp();
  float sums[kTiles][4];
  const auto clear = [&] {
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[t][i] = 0.0f;
    }
  };
  int chunk = 0;
  const auto multiply = [&](Chunk<kSteps>& current) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) Numbers<Element>::finish(current[step]);
    SharedMatrix weights = all_weights.advanced(chunk * (kSteps * kCoresOfStep * kFilters));
    begin_warpgroup_products(sums);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      add_warpgroup_product<typename Numbers<Element>::Product, kTiles>(sums, current[step], weights);
      weights = weights.advanced(kCoresOfStep * kFilters);
    }
    finish_warpgroup_products(sums);
  };
  const auto finish_chunk = [&] {
    if (++chunk < problem.chunks) return;
    Results<kTiles, Element>(problem, own, tile, first, first_of_all).store(sums, filters.bias);
    clear();
    chunk = 0;
    tile += stride;
  };
  if constexpr (kSlots > 0) {
    Slots<Element, kSteps, kSlots> slots(reinterpret_cast<unsigned char*>(filters.bias + kFilters));
    slots.fill(loader);
    filters.template finish<kSlots - 1>(cores, bias);
    clear();
    while (tile < problem.tiles) {
      Chunk<kSteps> current;
      slots.take_next(loader, current);
      multiply(current);
      finish_chunk();
    }
  } else {
    // Two chunks take turns: while one is multiplied the other is being loaded.
    Chunk<kSteps> even, odd;
    const auto load_next = [&](Chunk<kSteps>& to) { loader.load_next(InRegisters<Element, kSteps>(to)); };
    load_next(even);
    filters.template finish<0>(cores, bias);
    clear();
    for (bool is_odd = false; tile < problem.tiles; is_odd = !is_odd) {
      if (is_odd) {
        load_next(even);
        multiply(odd);
      } else {
        load_next(odd);
        multiply(even);
      }
      finish_chunk();
    }
  }
#endif
}

}  // namespace convswap::pointwise
