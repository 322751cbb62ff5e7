#pragma once

// The kernel of the algorithm `many_channels` that multiplies by wgmma, for compute capability 9.0.
// many_channels.cc explains the algorithm and fills the arguments.

#include "cuda/many_channels/consumers.cuh"
#include "cuda/many_channels/producers.cuh"
#include "cuda/primitives/dependent_launch.cuh"
#include "cuda/primitives/warpgroup.cuh"
#include "cuda/primitives/wgmma.cuh"

namespace convswap::many_channels {

// Accumulators of a consumer warpgroup, and their products by wgmma.
template <typename Format, int kAccumulatorTiles, typename Element = typename Format::Element>
class WgmmaMultiplier {
 public:
  using Loads = TmaLoads;
  static constexpr int kWarpgroupPositions = kAccumulatorTiles * kAccumulatorTileColumns;

  // Pipeline states for the pixel and weight stages. `last` and `previous` are the stages that the last two
  // wgmma groups read; these wgmma groups may still be in flight. Only the last wgmma group of a K tile
  // releases the pixel stage.
  struct State {
    DynamicPipelineState pixels, weights;
    StagesToRelease last, previous;
  };

  // Accumulates all K tiles of a work tile for the positions from `first_position` on. Returns the
  // description of the last pixel stage.
  __device__ PixelStageInfo accumulate(const Arguments<Element>& problem, BlockState& state,
                                       int first_position, State& consumer) {
    const DynamicPipelineState& pixels = consumer.pixels;
#pragma unroll
    for (int t = 0; t < kAccumulatorTiles; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) accumulators_[t][i] = 0.0f;
    }
    Loads::wait(&state.pixels_full[pixels.stage], pixels.phase);
    PixelStageInfo info = state.pixel_stage_info[pixels.stage];
    // Each iteration accumulates consecutive K tiles of the same scale.
    for (bool is_last = false; !is_last;) {
      const int exponent = info.exponent;
      wgmma_fence(accumulators_);
      do {
        multiply_k_tile(problem, state, first_position, consumer);
        is_last = info.is_last;
        if (is_last) break;
        Loads::wait(&state.pixels_full[pixels.stage], pixels.phase);
        info = state.pixel_stage_info[pixels.stage];
        // The vote shows the compiler that the branch is uniform. Without it, the compiler waits after every
        // wgmma.
      } while (!Format::kIsScaled || __all_sync(~0u, info.exponent == exponent));
      wgmma_wait_all(accumulators_);
      release(state, consumer.previous);
      release(state, consumer.last);
      if (Format::kIsScaled && !is_last) scale_by_power_of_two(accumulators_, info.exponent - exponent);
    }
    return info;
  }

  // Stores the results of the positions to which `output_offsets` belong.
  __device__ void store(const Arguments<Element>& problem, const TileInfo& tile_info, int exponent,
                        const int* output_offsets, float* staging) {
    store_results<Format>(problem, tile_info, exponent, output_offsets, accumulators_,
                          threadIdx.x % 128 / 32 * kWarpRows, staging);
  }

 private:
  // Issues the wgmmas of the next K tile for the positions from `first_position` on. On return, the last two
  // wgmma groups may still be in flight. Every K tile has at least one step. The do-while loops tell the
  // compiler so, which otherwise inserts waits between the wgmmas. `state` is a parameter because the
  // compiler would otherwise compute its address again for every weight stage.
  __device__ void multiply_k_tile(const Arguments<Element>& problem, BlockState& state, int first_position,
                                  State& consumer) {
    DynamicPipelineState &pixels = consumer.pixels, &weights = consumer.weights;
    const SmemDescriptor pixel_matrix =
        SmemDescriptor::at(pixel_stage(problem, pixels.stage), problem.channel_block_vectors.divisor)
            .advanced(first_position)
            .warp_uniform();
    int step = 0;
    do {
      Loads::wait(&state.weights_full[weights.stage], weights.phase);
      SmemDescriptor weight_matrix =
          SmemDescriptor::at(weight_stage(problem, weights.stage), kWgmmaM).warp_uniform();
      const int end = min(step + problem.stage_steps, problem.steps);
      wgmma_fence();
#pragma unroll 1
      do {
        wgmma<typename Format::Number, kAccumulatorTiles>(accumulators_, weight_matrix,
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

  float accumulators_[kAccumulatorTiles][4];
};

// The GEMM: persistent blocks compute the work tiles of a round. `prepare` has converted the operands.
template <typename Format, int kAccumulatorTiles>
__global__ void __launch_bounds__(kThreads, 1)
    kernel(const __grid_constant__ Arguments<typename Format::Element> problem) {
#if defined(__CUDA_ARCH__) && !defined(__CUDA_ARCH_FEAT_SM90_ALL)
#error "this kernel has code for compute capability 9.0 alone: compile it for sm_90a"
#else
  BlockState& state = block_state(problem);
  if (threadIdx.x == 0) init_barriers<TmaLoads>(problem, state);
  __syncthreads();
  const int warpgroup = warpgroup_index();
  if (warpgroup < kConsumerWarpgroups) {
    griddepcontrol_wait();
    griddepcontrol_launch_dependents();
    consume_tiles<Format, WgmmaMultiplier<Format, kAccumulatorTiles> >(problem, warpgroup);
  } else {
    produce_tiles<Format, TmaLoads>(problem);  // waits for `prepare`, too
  }
#endif
}

}  // namespace convswap::many_channels
