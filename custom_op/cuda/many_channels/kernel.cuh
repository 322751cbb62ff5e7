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

// Prepares the operands of `kernel`. A block converts the weights of one filter row, or a part of the chunks
// of a prepared tile and group.
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
    prepare_chunks<Format>(problem, blockIdx.x - problem.weight_blocks, state);
  }
}

// Multiplies the accumulators by 2^exponent.
template <int kTiles>
__device__ inline void scale_by_power_of_two(float (&accumulators)[kTiles][4], int exponent) {
  const PowerOfTwo power(exponent);
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
#pragma unroll
    for (int i = 0; i < 4; ++i) accumulators[t][i] = accumulators[t][i] * power.factor * power.second_factor;
  }
}

// Stages that wgmmas in flight read; -1 for none.
struct StagesInFlight {
  int image = -1, weights = -1;
};

// Pipeline position of a consumer warpgroup in the image and weight stages. `last` and `previous` are the
// stages that the last two wgmma groups read; these groups may still be in flight.
struct ConsumerState {
  DynamicPipelineState images, weights;
  StagesInFlight last, previous;
};

// Releases the stages to the producers, after the wgmmas that read them have finished.
__device__ inline void release(BlockState& state, StagesInFlight& stages) {
  if (stages.image >= 0) mbarrier_arrive(&state.image_empty[stages.image]);
  if (stages.weights >= 0) mbarrier_arrive(&state.weights_empty[stages.weights]);
  stages = {};
}

// Issues the wgmmas of the next chunk for the columns from `first_column` on. On return, the last two wgmma
// groups may still be in flight. Every chunk has at least one step; the do-while loops say so, otherwise the
// compiler inserts waits between the wgmmas. `state` is a parameter because the compiler would otherwise
// compute its address again for every weight stage.
template <typename Number, int kTiles, typename Element>
__device__ inline void multiply_chunk(const Arguments<Element>& problem, BlockState& state, int first_column,
                                      ConsumerState& consumer, float (&accumulators)[kTiles][4]) {
  DynamicPipelineState &images = consumer.images, &weights = consumer.weights;
  const SmemDescriptor image =
      SmemDescriptor::at(image_stage(problem, images.stage), problem.channel_block_vectors.divisor)
          .advanced(first_column)
          .warp_uniform();
  int step = 0;
  do {
    mbarrier_wait(&state.weights_full[weights.stage], weights.phase);
    SmemDescriptor filters = SmemDescriptor::at(weight_stage(problem, weights.stage), kWgmmaM).warp_uniform();
    const int end = min(step + problem.stage_steps, problem.steps);
    wgmma_fence();
#pragma unroll 1
    do {
      wgmma<Number, kTiles>(accumulators, filters, image.advanced(problem.step_offsets[step]));
      filters = filters.advanced(kStepUnits);
    } while (++step < end);
    wgmma_commit_group();
    // Two groups stay in flight, so the tensor core has work while the warp prepares the next group.
    wgmma_wait<2>();
    release(state, consumer.previous);
    consumer.previous = consumer.last;
    consumer.last = {-1, weights.stage};
    weights.advance(problem.weight_stages);
  } while (step < problem.steps);
  consumer.last.image = images.stage;
  images.advance(problem.image_stages);
}

// Accumulates all chunks of a tile for the columns from `first_column` on. Returns the description of the
// last image stage.
template <typename Format, int kTiles, typename Element = typename Format::Element>
__device__ inline ImageStageInfo mainloop(const Arguments<Element>& problem, BlockState& state,
                                          int first_column, ConsumerState& consumer,
                                          float (&accumulators)[kTiles][4]) {
  const DynamicPipelineState& images = consumer.images;
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
#pragma unroll
    for (int i = 0; i < 4; ++i) accumulators[t][i] = 0.0f;
  }
  mbarrier_wait(&state.image_full[images.stage], images.phase);
  ImageStageInfo info = state.image_info[images.stage];
  // Each iteration accumulates consecutive chunks of the same scale.
  for (bool is_last = false; !is_last;) {
    const int exponent = info.exponent;
    wgmma_fence(accumulators);
    do {
      multiply_chunk<typename Format::Number>(problem, state, first_column, consumer, accumulators);
      is_last = info.is_last;
      if (is_last) break;
      mbarrier_wait(&state.image_full[images.stage], images.phase);
      info = state.image_info[images.stage];
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

// Consumer warpgroup: computes the block's tiles and stores their results. Each of the two warpgroups has
// half of the columns.
template <typename Format, int kTiles, typename Element = typename Format::Element>
__device__ inline void consume_tiles(const Arguments<Element>& problem, int warpgroup) {
  constexpr int kColumns = kTiles * kTileColumns;
  BlockState& state = block_state(problem);
  const int first_column = warpgroup * kColumns;
  float* const staging = shared_memory_at(problem.shared.staging) + threadIdx.x / 32 * kStagedFloats;
  ConsumerState consumer;
  DynamicPipelineState tile_info_pipeline;
  const TileScheduler scheduler(problem);
  for (int work_index = scheduler.first; work_index < scheduler.end; ++work_index) {
    float accumulators[kTiles][4];
    const ImageStageInfo last = mainloop<Format>(problem, state, first_column, consumer, accumulators);
    mbarrier_wait(&state.tile_ready[tile_info_pipeline.stage], tile_info_pipeline.phase);
    const TileInfo& tile_info = state.tile_info[tile_info_pipeline.stage];
    const int* const output_offsets = output_offsets_at(problem, tile_info_pipeline.stage) + first_column;
    if (Format::kIsScaled && last.use_naive_conv) {
      if (problem.splits.divisor == 1) {
        compute_naive_conv<Format>(problem, tile_info, output_offsets, kColumns);
      } else {
        invalidate_split<Format>(problem, tile_info, output_offsets, kColumns);
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

// Adds the sums of the splits in their order and applies the epilogue.
template <typename Format>
__global__ void __launch_bounds__(kCombineThreads)
    combine(const __grid_constant__ Arguments<typename Format::Element> problem) {
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  const long long at = static_cast<long long>(blockIdx.x) * kCombineThreads + threadIdx.x;
  if (at < problem.y_elements) combine_split_sums<Format>(problem, at);
}

// Persistent blocks compute the tiles of a band. `prepare` has converted the operands.
template <typename Format, int kTiles>
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
    for (int i = 0; i < problem.image_stages; ++i) {
      tma_mbarrier_init(&state.image_full[i]);
      mbarrier_init(&state.image_empty[i], kConsumerThreads);
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
    consume_tiles<Format, kTiles>(problem, warpgroup);
  } else {
    produce_tiles<Format>(problem);  // waits for `prepare`, too
  }
#endif
}

}  // namespace convswap::many_channels
