#pragma once

// The kernels of the algorithm `many_channels`; many_channels.cc tells the idea and fills the arguments.

#include "cuda/many_channels/producers.cuh"
#include "cuda/many_channels/results.cuh"
#include "cuda/primitives/dependent_launch.cuh"
#include "cuda/primitives/mbarrier.cuh"
#include "cuda/primitives/tma.cuh"
#include "cuda/primitives/warpgroup.cuh"
#include "cuda/primitives/wgmma.cuh"

namespace convswap::many_channels {

// Prepares the weights, a block for a row, and the pixels of a band, a block for a part of the chunks of a
// tile and a group.
template <typename Format>
__global__ void __launch_bounds__(kPreparers, kPreparersOfMultiprocessor / kPreparers)
    prepare(const __grid_constant__ Arguments<typename Format::Element> problem) {
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  extern __shared__ __align__(128) unsigned char shared[];
  PreparedState& state = *reinterpret_cast<PreparedState*>(shared);
  if (threadIdx.x == 0) state.most = 0u, state.least_less_one = ~0u;
  __syncthreads();
  if (static_cast<int>(blockIdx.x) < problem.weight_blocks) {
    prepare_row<Format>(problem, blockIdx.x, state);
  } else {
    prepare_chunks<Format>(problem, blockIdx.x - problem.weight_blocks, state);
  }
}

// Multiplies sums by a power of two.
template <int kTiles>
__device__ inline void scale_sums(float (&accumulators)[kTiles][4], int exponent) {
  const PowerOfTwo power(exponent);
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
#pragma unroll
    for (int i = 0; i < 4; ++i) accumulators[t][i] = accumulators[t][i] * power.factor * power.rest;
  }
}

// Stages that products are taken from.
struct InUse {
  int image = -1, weights = -1;
};

// How far a warpgroup has come in the rings of pixels and weights, and what products that may not have ended
// yet are taken from: those of the last group, and of the one before.
struct Operands {
  DynamicPipelineState images, weights;
  InUse last, before;
};

// Lets producers load what comes next to stages that no product is taken from any more.
__device__ inline void release(BlockState& state, InUse& own) {
  if (own.image >= 0) mbarrier_arrive(&state.multiplied[own.image]);
  if (own.weights >= 0) mbarrier_arrive(&state.weights_multiplied[own.weights]);
  own = {};
}

// Adds the products of the next chunk, of columns from the first one on; those of its last two groups may not
// have ended. There is a step in every chunk, and loops that say so keep the compiler from waiting in
// between. `state` is passed on, or the compiler would find the block's anew for every group.
template <typename Number, int kTiles, typename Element>
__device__ inline void add_chunk(const Arguments<Element>& problem, BlockState& state, int first_column,
                                 Operands& operands, float (&accumulators)[kTiles][4]) {
  DynamicPipelineState &images = operands.images, &weights = operands.weights;
  const SmemDescriptor image =
      SmemDescriptor::at(image_stage(problem, images.stage), problem.bundle_places.divisor)
          .advanced(first_column)
          .warp_uniform();
  int first = 0;
  do {
    mbarrier_wait(&state.weights_loaded[weights.stage], weights.phase);
    SmemDescriptor filters = SmemDescriptor::at(weight_stage(problem, weights.stage), kRows).warp_uniform();
    const int end = min(first + problem.group_steps, problem.steps);
    wgmma_fence();
#pragma unroll 1
    do {
      wgmma<Number, kTiles>(accumulators, filters, image.advanced(problem.step_places[first]));
      filters = filters.advanced(kStepUnits);
    } while (++first < end);
    wgmma_commit_group();
    // Two groups are under way, so that the tensor core has one while a warp comes here.
    wgmma_wait<2>();
    release(state, operands.before);
    operands.before = operands.last;
    operands.last = {-1, weights.stage};
    weights.advance(problem.weight_stages);
  } while (first < problem.steps);
  operands.last.image = images.stage;
  images.advance(problem.image_stages);
}

// Sums up the products of all chunks of a tile, of columns from the first one on. Returns what is known of
// the last chunk.
template <typename Format, int kTiles, typename Element = typename Format::Element>
__device__ inline ImageStage sum_up_chunks(const Arguments<Element>& problem, BlockState& state,
                                           int first_column, Operands& operands,
                                           float (&accumulators)[kTiles][4]) {
  const DynamicPipelineState& images = operands.images;
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
#pragma unroll
    for (int i = 0; i < 4; ++i) accumulators[t][i] = 0.0f;
  }
  mbarrier_wait(&state.loaded[images.stage], images.phase);
  ImageStage own = state.images[images.stage];
  // Chunks of one scale after the other.
  for (bool is_last = false; !is_last;) {
    const int exponent = own.exponent;
    wgmma_fence(accumulators);
    do {
      add_chunk<typename Format::Number>(problem, state, first_column, operands, accumulators);
      is_last = own.is_last;
      if (is_last) break;
      mbarrier_wait(&state.loaded[images.stage], images.phase);
      own = state.images[images.stage];
      // A vote shows the compiler that all lanes go the same way: else it would wait after every product.
    } while (!Format::kIsScaled || __all_sync(~0u, own.exponent == exponent));
    wgmma_wait_all(accumulators);
    release(state, operands.before);
    release(state, operands.last);
    if (Format::kIsScaled && !is_last) scale_sums(accumulators, own.exponent - exponent);
  }
  return own;
}

// Multiplies the tiles of a block and stores their results: a warpgroup of two, which have a half of the
// columns each.
template <typename Format, int kTiles, typename Element = typename Format::Element>
__device__ inline void multiply_tiles(const Arguments<Element>& problem, int warpgroup) {
  constexpr int kColumns = kTiles * kTileColumns;
  BlockState& state = state_of_block(problem);
  const int first_column = warpgroup * kColumns;
  float* const staged = shared_memory_at(problem.shared.results) + threadIdx.x / 32 * kStagedFloats;
  Operands operands;
  DynamicPipelineState heads;
  const Works works(problem);
  for (int work = works.first; work < works.end; ++work) {
    float accumulators[kTiles][4];
    const ImageStage last = sum_up_chunks<Format>(problem, state, first_column, operands, accumulators);
    mbarrier_wait(&state.told[heads.stage], heads.phase);
    const Head& head = state.heads[heads.stage];
    const int* const outputs = outputs_of_head(problem, heads.stage) + first_column;
    if (Format::kIsScaled && last.defines) {
      if (problem.splits.divisor == 1) {
        compute_as_defined<Format>(problem, head, outputs, kColumns);
      } else {
        leave_undefined<Format>(problem, head, outputs, kColumns);
      }
    } else {
      store_results<Format>(problem, head, last.exponent, outputs, accumulators, staged);
    }
    // The copy of the next tile's outputs comes over what was read of these.
    fence_proxy_async();
    mbarrier_arrive(&state.stored[heads.stage]);
    heads.advance(kHeadStages);
  }
}

// Adds what the splits have summed up, in their order, and does all that follows.
template <typename Format>
__global__ void __launch_bounds__(kCombiners)
    combine(const __grid_constant__ Arguments<typename Format::Element> problem) {
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  const long long at = static_cast<long long>(blockIdx.x) * kCombiners + threadIdx.x;
  if (at < problem.results) combine_result<Format>(problem, at);
}

// Persistent blocks, which take tiles of a band and blocks of filters; the kernel before prepares.
template <typename Format, int kTiles>
__global__ void __launch_bounds__(kThreads, 1)
    kernel(const __grid_constant__ Arguments<typename Format::Element> problem) {
#if defined(__CUDA_ARCH__) && !defined(__CUDA_ARCH_FEAT_SM90_ALL)
#error "many_channels has code for compute capability 9.0 alone: compile it for sm_90a"
#else
  BlockState& state = state_of_block(problem);
  if (threadIdx.x == 0) {
    for (int i = 0; i < problem.weight_stages; ++i) {
      tma_mbarrier_init(&state.weights_loaded[i]);
      mbarrier_init(&state.weights_multiplied[i], kConsumers);
    }
    for (int i = 0; i < problem.image_stages; ++i) {
      tma_mbarrier_init(&state.loaded[i]);
      mbarrier_init(&state.multiplied[i], kConsumers);
    }
    for (int i = 0; i < kHeadStages; ++i) {
      tma_mbarrier_init(&state.told[i]);
      mbarrier_init(&state.stored[i], kConsumers);
    }
  }
  __syncthreads();
  const int warpgroup = warpgroup_index();
  if (warpgroup < kConsumerWarpgroups) {
    griddepcontrol_wait();
    griddepcontrol_launch_dependents();
    multiply_tiles<Format, kTiles>(problem, warpgroup);
  } else {
    produce_tiles<Format>(problem);  // which waits, too
  }
#endif
}

}  // namespace convswap::many_channels
