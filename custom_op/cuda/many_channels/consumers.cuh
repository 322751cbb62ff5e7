#pragma once

// The part of the consumers that does not depend on how they multiply: the loop over the work tiles.

#include "cuda/many_channels/epilogue.cuh"
#include "cuda/many_channels/loads.cuh"
#include "cuda/primitives/mbarrier.cuh"
#include "cuda/primitives/pipeline_state.cuh"
#include "cuda/primitives/tensor_core_formats.cuh"

namespace convswap::many_channels {

// Called by one thread, before the block's first __syncthreads.
template <typename Loads, typename Element>
__device__ inline void init_barriers(const Arguments<Element>& problem, BlockState& state) {
  for (int i = 0; i < problem.weight_stages; ++i) {
    Loads::init_full(&state.weights_full[i]);
    mbarrier_init(&state.weights_empty[i], kConsumerThreads);
  }
  for (int i = 0; i < problem.pixel_stages; ++i) {
    Loads::init_full(&state.pixels_full[i]);
    mbarrier_init(&state.pixels_empty[i], kConsumerThreads);
  }
  for (int i = 0; i < kTileInfoStages; ++i) {
    Loads::init_full(&state.tile_ready[i]);
    mbarrier_init(&state.tile_done[i], kConsumerThreads);
  }
}

// Multiplies the accumulators by 2^exponent.
template <int kAccumulatorTiles>
__device__ inline void scale_by_power_of_two(float (&accumulators)[kAccumulatorTiles][4], int exponent) {
  const PowerOfTwo power(exponent);
#pragma unroll
  for (int t = 0; t < kAccumulatorTiles; ++t) {
#pragma unroll
    for (int i = 0; i < 4; ++i) accumulators[t][i] = accumulators[t][i] * power.factor * power.second_factor;
  }
}

// Stages to release once they have been read; -1 for none.
struct StagesToRelease {
  int pixels = -1, weights = -1;
};

// Releases the stages to the producers.
__device__ inline void release(BlockState& state, StagesToRelease& stages) {
  if (stages.pixels >= 0) mbarrier_arrive(&state.pixels_empty[stages.pixels]);
  if (stages.weights >= 0) mbarrier_arrive(&state.weights_empty[stages.weights]);
  stages = {};
}

// Consumer warps: compute the block's work tiles and store their results. `Multiplier` has the accumulators
// of a work tile and adds and stores them: WgmmaMultiplier (kernel.cuh) or MmaMultiplier (mma_kernel.cuh).
// Each of the two warpgroups has half of the positions.
template <typename Format, typename Multiplier, typename Element = typename Format::Element>
__device__ inline void consume_tiles(const Arguments<Element>& problem, int warpgroup) {
  using Loads = typename Multiplier::Loads;
  constexpr int kPositions = Multiplier::kWarpgroupPositions;
  BlockState& state = block_state(problem);
  const int first_position = warpgroup * kPositions;
  float* const staging = shared_memory_at(problem.shared.staging) + threadIdx.x / 32 * kStagedFloats;
  typename Multiplier::State consumer;
  DynamicPipelineState tile_info_pipeline;
  const TileScheduler scheduler(problem);
  for (int work_index = scheduler.first; work_index < scheduler.end; ++work_index) {
    Multiplier multiplier;
    const PixelStageInfo last = multiplier.accumulate(problem, state, first_position, consumer);
    Loads::wait(&state.tile_ready[tile_info_pipeline.stage], tile_info_pipeline.phase);
    const TileInfo& tile_info = state.tile_info[tile_info_pipeline.stage];
    const int* const output_offsets =
        shared_output_offsets(problem, tile_info_pipeline.stage) + first_position;
    if (Format::kIsScaled && last.use_naive_conv) {
      if (problem.splits.divisor == 1) {
        compute_naive_conv<Format>(problem, tile_info, output_offsets, kPositions);
      } else {
        invalidate_split<Format>(problem, tile_info, output_offsets, kPositions);
      }
    } else {
      multiplier.store(problem, tile_info, last.exponent, output_offsets, staging);
    }
    // Orders the reads of the output offsets before the load that overwrites them.
    Loads::fence();
    mbarrier_arrive(&state.tile_done[tile_info_pipeline.stage]);
    tile_info_pipeline.advance(kTileInfoStages);
  }
}

}  // namespace convswap::many_channels
