#pragma once

// The kernel of the algorithm `many_channels` that multiplies by mma.sync, from compute capability 8.0 on.
// many_channels.cc explains the algorithm and fills the arguments.

#include "cuda/many_channels/consumers.cuh"
#include "cuda/many_channels/producers.cuh"
#include "cuda/primitives/dependent_launch.cuh"
#include "cuda/primitives/ldmatrix.cuh"
#include "cuda/primitives/mma.cuh"
#include "cuda/primitives/warpgroup.cuh"

namespace convswap::many_channels {

// Accumulators of a consumer warp, and their products by mma.sync. A warp has all 64 filters at an eighth of
// a work tile's positions, so a thread has as many accumulators as with wgmma.
//
// In shared memory any 8 neighbouring vectors are a matrix of ldmatrix in 128 contiguous bytes, as are 8
// filters' weights of 8 channels. A step needs 16 channels: two matrices for each 8 positions or filters.
template <typename Format, int kAccumulatorTiles, typename Element = typename Format::Element>
class MmaMultiplier {
  static_assert(kAccumulatorTiles % 4 == 0);
  static constexpr int kFilterTiles = kWgmmaM / 16;                // of 16 filters
  static constexpr int kPositionTiles = kAccumulatorTiles / 4;     // of 8 positions
  static constexpr int kPositionPairs = (kPositionTiles + 1) / 2;  // pairs of them; the last may be a single

 public:
  using Loads = CpAsyncLoads;
  static constexpr int kWarpgroupPositions = kAccumulatorTiles * kAccumulatorTileColumns;

  struct State {
    DynamicPipelineState pixels, weights;
  };

  // Accumulates all K tiles of a work tile. Returns the description of the last pixel stage.
  //
  // Loads run ahead of the mmas that need them: weights by 16 filters, and vectors by a filter tile's mmas.
  // The vectors of the next step replace those of this step after their last mmas. A second copy of the
  // vectors would take more registers than a thread has.
  __device__ PixelStageInfo accumulate(const Arguments<Element>& problem, BlockState& state,
                                       int first_position, State& consumer) {
#pragma unroll
    for (int f = 0; f < kFilterTiles; ++f) {
#pragma unroll
      for (int p = 0; p < kPositionTiles; ++p) {
#pragma unroll
        for (int i = 0; i < 4; ++i) accumulators_[f][p][i] = 0.0f;
      }
    }
    Stages stages(problem, state, first_position + warp_position(), consumer);
    unsigned pixels[kPositionTiles][2];
    unsigned weights[2][4];  // of a filter tile, and of the next
#pragma unroll
    for (int pair = 0; pair < kPositionPairs; ++pair) load_pixels(pixels, pair, stages.pixels);
    ldmatrix(weights[0], stages.weights);
    for (bool has_next = true; has_next;) {
      // The steps of a weight stage but the last have no branches.
#pragma unroll 1
      for (; stages.steps > 1; --stages.steps) {
        const SharedAddress step_weights = stages.weights;
        stages.advance();
        multiply_step(step_weights, stages, pixels, weights);
      }
      const SharedAddress step_weights = stages.weights;
      has_next = stages.enter_next();
      multiply_step(step_weights, stages, pixels, weights);
      release(state, stages.finished);
      if constexpr (Format::kIsScaled) {
        if (stages.exponent_change != 0) {
#pragma unroll
          for (int f = 0; f < kFilterTiles; ++f) {
            scale_by_power_of_two(accumulators_[f], stages.exponent_change);
          }
          stages.exponent_change = 0;
        }
      }
    }
    return stages.info;
  }

  // Stores the results of the positions to which `output_offsets` belong; those of the warpgroup.
  __device__ void store(const Arguments<Element>& problem, const TileInfo& tile_info, int exponent,
                        const int* output_offsets, float* staging) {
#pragma unroll
    for (int f = 0; f < kFilterTiles; ++f) {
      store_results<Format>(problem, tile_info, exponent, output_offsets + warp_position(), accumulators_[f],
                            f * kWarpRows, staging);
    }
  }

 private:
  // The warp's first position among those of its warpgroup.
  static __device__ int warp_position() {
    return static_cast<int>(threadIdx.x) % 128 / 32 * (kPositionTiles * kAccumulatorTileColumns);
  }

  // Iterates over the steps of a work tile, through the pixel and weight stages.
  struct Stages {
    const Arguments<Element>& problem;
    BlockState& state;
    State& consumer;
    int lane_pixels, lane_weights;  // offsets in bytes of the lane's row of the first matrices
    SharedAddress stage_pixels;     // the lane's row of the pixel stage
    SharedAddress pixels, weights;  // the lane's row for the step
    int steps;                      // of the weight stage, from this step on
    // The step after this one, and its offset, which is loaded in advance; 0 after the last step of a K tile.
    int next_step = 0, next_offset;
    StagesToRelease finished;  // stages that were read
    PixelStageInfo info;
    int exponent_change = 0;  // between the previous step and this one

    __device__ Stages(const Arguments<Element>& problem, BlockState& state, int first_position,
                      State& consumer)
        : problem(problem), state(state), consumer(consumer), next_offset(problem.step_offsets[0]) {
      const int lane = threadIdx.x % 32;
      // Matrices of pixels: the first channel block of 8 positions, the second, and those of the next 8.
      lane_pixels = (lane / 8 % 2 * static_cast<int>(problem.channel_block_vectors.divisor) + first_position +
                     lane / 16 * 8 + lane % 8) *
                    kVectorBytes;
      // Matrices of weights: 16 filters' first channel block, then their second.
      lane_weights = (lane / 16 * kWgmmaM + lane % 16) * kVectorBytes;
      info = wait_for_pixel_stage();
      wait_for_weight_stage();
      set_pixels();
    }

    // Goes to the next step of the weight stage.
    __device__ void advance() {
      weights += kStepUnits * kVectorBytes;
      set_pixels();
    }

    // Goes to the first step of the next stages, once they are loaded. After the last step of the work tile,
    // returns false and stays at that step.
    __device__ bool enter_next() {
      finished.weights = consumer.weights.stage;
      consumer.weights.advance(problem.weight_stages);
      if (next_step == 0) {
        finished.pixels = consumer.pixels.stage;
        consumer.pixels.advance(problem.pixel_stages);
        if (__all_sync(~0u, info.is_last)) return false;
        const int exponent = info.exponent;
        info = wait_for_pixel_stage();
        if (Format::kIsScaled) exponent_change = __shfl_sync(~0u, info.exponent - exponent, 0);
      }
      wait_for_weight_stage();
      set_pixels();
      return true;
    }

   private:
    __device__ PixelStageInfo wait_for_pixel_stage() {
      Loads::wait(&state.pixels_full[consumer.pixels.stage], consumer.pixels.phase);
      stage_pixels = shared_address(pixel_stage(problem, consumer.pixels.stage)) + lane_pixels;
      return state.pixel_stage_info[consumer.pixels.stage];
    }
    __device__ void wait_for_weight_stage() {
      Loads::wait(&state.weights_full[consumer.weights.stage], consumer.weights.phase);
      weights = shared_address(weight_stage(problem, consumer.weights.stage)) + lane_weights;
      steps = min(problem.stage_steps, problem.steps - next_step);
    }
    __device__ void set_pixels() {
      pixels = stage_pixels + next_offset * kVectorBytes;
      if (++next_step == problem.steps) next_step = 0;
      next_offset = problem.step_offsets[next_step];
    }
  };

  // Loads the vectors of two position tiles.
  static __device__ void load_pixels(unsigned (&pixels)[kPositionTiles][2], int pair, SharedAddress address) {
    const SharedAddress row = address + pair * 2 * kAccumulatorTileColumns * kVectorBytes;
    if (2 * pair + 1 < kPositionTiles) {
      unsigned matrices[4];
      ldmatrix(matrices, row);
      pixels[2 * pair][0] = matrices[0], pixels[2 * pair][1] = matrices[1];
      pixels[2 * pair + 1][0] = matrices[2], pixels[2 * pair + 1][1] = matrices[3];
    } else {
      ldmatrix(pixels[2 * pair], row);
    }
  }

  // Issues the mmas of a step, and loads for the step that `stages` is at. `weights[0]` has the step's first
  // filter tile, and later that of the next step. Loads after the last step are repeated and not used.
  __device__ void multiply_step(SharedAddress step_weights, const Stages& stages,
                                unsigned (&pixels)[kPositionTiles][2], unsigned (&weights)[2][4]) {
#pragma unroll
    for (int f = 0; f < kFilterTiles; ++f) {
      const int next = f + 1;
      ldmatrix(weights[next % 2],
               next < kFilterTiles ? step_weights + next * 16 * kVectorBytes : stages.weights);
#pragma unroll
      for (int p = 0; p < kPositionTiles; ++p) {
        const unsigned (&a)[4] = weights[f % 2];
        mma_m16n8k16<typename Format::Number>(accumulators_[f][p], a[0], a[1], a[2], a[3], pixels[p][0],
                                              pixels[p][1]);
        if (next == kFilterTiles && (p % 2 == 1 || p + 1 == kPositionTiles)) {
          load_pixels(pixels, p / 2, stages.pixels);
        }
      }
    }
  }

  float accumulators_[kFilterTiles][kPositionTiles][4];
};

// The GEMM by mma.sync: persistent blocks compute the work tiles of a round.
template <typename Format, int kAccumulatorTiles>
__global__ void __launch_bounds__(kThreads, 1)
    mma_kernel(const __grid_constant__ Arguments<typename Format::Element> problem) {
  BlockState& state = block_state(problem);
  if (threadIdx.x == 0) init_barriers<CpAsyncLoads>(problem, state);
  __syncthreads();
  const int warpgroup = warpgroup_index();
  if (warpgroup < kConsumerWarpgroups) {
    griddepcontrol_wait();
    griddepcontrol_launch_dependents();
    consume_tiles<Format, MmaMultiplier<Format, kAccumulatorTiles>>(problem, warpgroup);
  } else {
    produce_tiles<Format, CpAsyncLoads>(problem);  // waits for `prepare`, too
  }
}

}  // namespace convswap::many_channels
