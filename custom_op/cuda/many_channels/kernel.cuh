#pragma once

// Kernels of the algorithm `many_channels`. many_channels.cc explains the algorithm and fills the arguments.

#include "cuda/many_channels/epilogue.cuh"
#include "cuda/many_channels/producers.cuh"
#include "cuda/primitives/dependent_launch.cuh"
#include "cuda/primitives/mbarrier.cuh"
#include "cuda/primitives/tma.cuh"
#include "cuda/primitives/warpgroup.cuh"
#include "cuda/primitives/wgmma.cuh"

namespace convswap::many_channels {

// Prepares the operands of `kernel`. A block converts the weights of one filter row, or a part of the K tiles
// of a prepared tile and conv group.
template <typename Format>
__global__ void __launch_bounds__(kPrepareThreads, kPrepareThreadsPerSm / kPrepareThreads)
    prepare(const __grid_constant__ Arguments<typename Format::Element> problem) {
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  extern __shared__ __align__(128) unsigned char shared[];
  PrepareState& state = *reinterpret_cast<PrepareState*>(shared);
  if (threadIdx.x == 0) state.max_bits = 0u, state.min_bits_less_one = ~0u;
  __syncthreads();
  if (static_cast<int>(blockIdx.x) < problem.weight_blocks) {
    prepare_filter<Format>(problem, blockIdx.x, state);
  } else {
    prepare_k_tiles<Format>(problem, blockIdx.x - problem.weight_blocks, state);
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

// Stages to release once a wgmma group has finished; -1 for none. Only the last wgmma group of a K tile
// releases the pixel stage.
struct StagesToRelease {
  int pixels = -1, weights = -1;
};

// Pipeline states of a consumer warpgroup for the pixel and weight stages. `last` and `previous` are the
// stages that the last two wgmma groups read; these wgmma groups may still be in flight.
struct ConsumerState {
  DynamicPipelineState pixels, weights;
  StagesToRelease last, previous;
};

// Releases the stages to the producers, after the wgmmas that read them have finished.
__device__ inline void release(BlockState& state, StagesToRelease& stages) {
  if (stages.pixels >= 0) mbarrier_arrive(&state.pixels_empty[stages.pixels]);
  if (stages.weights >= 0) mbarrier_arrive(&state.weights_empty[stages.weights]);
  stages = {};
}

// Issues the wgmmas of the next K tile for the positions from `first_position` on. On return, the last two
// wgmma groups may still be in flight. Every K tile has at least one step. The do-while loops tell the
// compiler so, which otherwise inserts waits between the wgmmas. `state` is a parameter because the compiler
// would otherwise compute its address again for every weight stage.
template <typename Number, int kAccumulatorTiles, typename Element>
__device__ inline void multiply_k_tile(const Arguments<Element>& problem, BlockState& state,
                                       int first_position, ConsumerState& consumer,
                                       float (&accumulators)[kAccumulatorTiles][4]) {
  DynamicPipelineState &pixels = consumer.pixels, &weights = consumer.weights;
  const SmemDescriptor pixel_matrix =
      SmemDescriptor::at(pixel_stage(problem, pixels.stage), problem.channel_block_vectors.divisor)
          .advanced(first_position)
          .warp_uniform();
  int step = 0;
  do {
    mbarrier_wait(&state.weights_full[weights.stage], weights.phase);
    SmemDescriptor weight_matrix =
        SmemDescriptor::at(weight_stage(problem, weights.stage), kWgmmaM).warp_uniform();
    const int end = min(step + problem.stage_steps, problem.steps);
    wgmma_fence();
#pragma unroll 1
    do {
      wgmma<Number, kAccumulatorTiles>(accumulators, weight_matrix,
                                       pixel_matrix.advanced(problem.step_offsets[step]));
      weight_matrix = weight_matrix.advanced(kStepUnits);
    } while (++step < end);
    wgmma_commit_group();
    // Two wgmma groups stay in flight, so the tensor core has work while the warp prepares the next.
    wgmma_wait<2>();
    release(state, consumer.previous);
    consumer.previous = consumer.last;
    consumer.last = {-1, weights.stage};
    weights.advance(problem.weight_stages);
  } while (step < problem.steps);
  consumer.last.pixels = pixels.stage;
  pixels.advance(problem.pixel_stages);
}

// Accumulates all K tiles of a work tile for the positions from `first_position` on. Returns the description
// of the last pixel stage.
template <typename Format, int kAccumulatorTiles, typename Element = typename Format::Element>
__device__ inline PixelStageInfo mainloop(const Arguments<Element>& problem, BlockState& state,
                                          int first_position, ConsumerState& consumer,
                                          float (&accumulators)[kAccumulatorTiles][4]) {
  const DynamicPipelineState& pixels = consumer.pixels;
#pragma unroll
  for (int t = 0; t < kAccumulatorTiles; ++t) {
#pragma unroll
    for (int i = 0; i < 4; ++i) accumulators[t][i] = 0.0f;
  }
  mbarrier_wait(&state.pixels_full[pixels.stage], pixels.phase);
  PixelStageInfo info = state.pixel_stage_info[pixels.stage];
  // Each iteration accumulates consecutive K tiles of the same scale.
  for (bool is_last = false; !is_last;) {
    const int exponent = info.exponent;
    wgmma_fence(accumulators);
    do {
      multiply_k_tile<typename Format::Number>(problem, state, first_position, consumer, accumulators);
      is_last = info.is_last;
      if (is_last) break;
      mbarrier_wait(&state.pixels_full[pixels.stage], pixels.phase);
      info = state.pixel_stage_info[pixels.stage];
      // The vote shows the compiler that the branch is uniform. Without it, the compiler waits after every
      // wgmma.
    } while (!Format::kIsScaled || __all_sync(~0u, info.exponent == exponent));
    wgmma_wait_all(accumulators);
    release(state, consumer.previous);
    release(state, consumer.last);
    if (Format::kIsScaled && !is_last) scale_by_power_of_two(accumulators, info.exponent - exponent);
  }
  return info;
}

// Consumer warpgroup: computes the block's work tiles and stores their results. Each of the two warpgroups
// has half of the positions.
template <typename Format, int kAccumulatorTiles, typename Element = typename Format::Element>
__device__ inline void consume_tiles(const Arguments<Element>& problem, int warpgroup) {
  constexpr int kPositions = kAccumulatorTiles * kAccumulatorTileColumns;
  BlockState& state = block_state(problem);
  const int first_position = warpgroup * kPositions;
  float* const staging = shared_memory_at(problem.shared.staging) + threadIdx.x / 32 * kStagedFloats;
  ConsumerState consumer;
  DynamicPipelineState tile_info_pipeline;
  const TileScheduler scheduler(problem);
  for (int work_index = scheduler.first; work_index < scheduler.end; ++work_index) {
    float accumulators[kAccumulatorTiles][4];
    const PixelStageInfo last = mainloop<Format>(problem, state, first_position, consumer, accumulators);
    mbarrier_wait(&state.tile_ready[tile_info_pipeline.stage], tile_info_pipeline.phase);
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
      store_results<Format>(problem, tile_info, last.exponent, output_offsets, accumulators, staging);
    }
    // Orders the reads of the output offsets before the TMA load that overwrites them.
    fence_proxy_async();
    mbarrier_arrive(&state.tile_done[tile_info_pipeline.stage]);
    tile_info_pipeline.advance(kTileInfoStages);
  }
}

// Adds the sums of split-K in the order of the splits and applies the epilogue.
template <typename Format>
__global__ void __launch_bounds__(kCombineThreads)
    combine(const __grid_constant__ Arguments<typename Format::Element> problem) {
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  const long long at = static_cast<long long>(blockIdx.x) * kCombineThreads + threadIdx.x;
  if (at < problem.y_elements) combine_split_sums<Format>(problem, at);
}

// The GEMM: persistent blocks compute the work tiles of a round. `prepare` has converted the operands.
template <typename Format, int kAccumulatorTiles>
__global__ void __launch_bounds__(kThreads, 1)
    kernel(const __grid_constant__ Arguments<typename Format::Element> problem) {
#if defined(__CUDA_ARCH__) && !defined(__CUDA_ARCH_FEAT_SM90_ALL)
#error "many_channels has code for compute capability 9.0 alone: compile it for sm_90a"
#else
  BlockState& state = block_state(problem);
  if (threadIdx.x == 0) {
    for (int i = 0; i < problem.weight_stages; ++i) {
      tma_mbarrier_init(&state.weights_full[i]);
      mbarrier_init(&state.weights_empty[i], kConsumerThreads);
    }
    for (int i = 0; i < problem.pixel_stages; ++i) {
      tma_mbarrier_init(&state.pixels_full[i]);
      mbarrier_init(&state.pixels_empty[i], kConsumerThreads);
    }
    for (int i = 0; i < kTileInfoStages; ++i) {
      tma_mbarrier_init(&state.tile_ready[i]);
      mbarrier_init(&state.tile_done[i], kConsumerThreads);
    }
  }
  __syncthreads();
  const int warpgroup = warpgroup_index();
  if (warpgroup < kConsumerWarpgroups) {
    griddepcontrol_wait();
    griddepcontrol_launch_dependents();
    consume_tiles<Format, kAccumulatorTiles>(problem, warpgroup);
  } else {
    produce_tiles<Format>(problem);  // waits for `prepare`, too
  }
#endif
}

}  // namespace convswap::many_channels
