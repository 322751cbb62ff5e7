#pragma once

// The kernels of the algorithm `many_channels`; many_channels.cc tells the idea, plan.cc fills the arguments.

#include "cuda/many_channels/copies.cuh"
#include "cuda/many_channels/input.cuh"
#include "cuda/many_channels/results.cuh"
#include "cuda/many_channels/weights.cuh"
#include "cuda/primitives/arrival_barrier.cuh"
#include "cuda/primitives/dependent_launch.cuh"
#include "cuda/primitives/registers.cuh"
#include "cuda/primitives/warpgroup_barrier.cuh"
#include "cuda/primitives/warpgroup_multiply.cuh"

namespace convswap::many_channels {

// The parts of shared memory, found each time: a register is worth more than an addition.
template <typename Part>
__device__ inline Part* shared_part(Offset<Part> offset) {
  extern __shared__ __align__(128) unsigned char shared[];
  return offset.in(shared);
}
template <typename Element>
__device__ inline BlockState& state_of_block(const Arguments<Element>& problem) {
  return *shared_part(problem.shared.state);
}
template <typename Element>
__device__ inline unsigned char* image_stage(const Arguments<Element>& problem, int stage) {
  return shared_part(problem.shared.images) + stage * problem.image_stage_bytes;
}

// Of all threads of the warp together.
__device__ inline void arrive_as_warp(ArrivalBarrier* barrier) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) arrive(barrier);
}

// What a block's converters know of the values of a tile, the same in all of them.
struct TileValues {
  int top = kFirstTop;  // of the window that is being converted
  int highest, lowest;  // the binades that the tile's values lie in
  bool are_finite;
  int low;  // chunks that are to be converted once more, of this pass

  __device__ void begin_tile() { highest = -1000, lowest = 1000, are_finite = true; }
  __device__ void include(int above, int below) {
    highest = max(highest, above), lowest = min(lowest, below);
  }
  // With weights of so many windows. ~0: that cannot be multiplied.
  __device__ bool can_be_multiplied(unsigned weight_windows) const {
    return are_finite && weight_windows <= kMostWeightWindows &&
           highest - lowest < kMostBinades - kBinades * static_cast<int>(weight_windows - 1);
  }
};

// Lets consumers have a converted chunk, which has been shown to products; by every converter.
template <typename Element>
__device__ inline void commit_chunk(const Arguments<Element>& problem, OpenRing& ring, ImageStage what) {
  BlockState& state = state_of_block(problem);
  if (threadIdx.x == 0) state.images[ring.stage] = what;
  arrive_as_warp(&state.converted[ring.stage]);
  ring.advance(problem.image_stages);
}

// Converts a chunk again that does not fit the guess of how large its values are, and notes what of it lies
// below its window. `range` is what the thread has seen of it.
template <typename Format, typename Element = typename Format::Element>
__device__ __noinline__ TileValues convert_apart(const Arguments<Element>& problem,
                                                 const unsigned char* pixels, int chunk, bool is_first,
                                                 ValueRange<Element> range, TileValues values,
                                                 unsigned char* stage) {
  const auto sync = [] { sync_threads(kConverterBarrier, kConverters); };
  const ValueRange<Element> whole = reduce_threads(range, state_of_block(problem), threadIdx.x == 0, sync);
  if (!whole.is_finite()) {
    values.are_finite = false;
    return values;
  }
  // Not lower than before, so that few chunks change the scale of the sums.
  values.top = is_first ? whole.window_top() : max(values.top, whole.top());
  values.include(whole.top(), whole.bottom());
  convert_staged<Format, true>(problem, shared_part(problem.shared.sources), pixels, chunk,
                               BinadeWindow(values.top), stage, range);
  for (int i = 1; i <= kMostLowWindows && whole.bottom() <= values.top - i * kBinades; ++i) {
    if (threadIdx.x == 0) {
      shared_part(problem.shared.low_chunks)[values.low] = {chunk, values.top - i * kBinades};
    }
    ++values.low;
  }
  sync();
  return values;
}

// Tells consumers of a tile, once there is room, and finds the sources of its pixels where it has not been
// done for the work before. By all converters, who meet.
template <typename Element>
__device__ inline void begin_work(const Arguments<Element>& problem, int work, bool is_new, OpenRing& heads,
                                  int& slot) {
  BlockState& state = state_of_block(problem);
  const Share share(problem, work);
  const TileStart tile(problem, share.tile);
  if (is_new) {
    if (++slot == kTileSlots) slot = 0;
    find_sources(problem, tile, shared_part(problem.shared.runs) + slot * problem.runs,
                 shared_part(problem.shared.sources));
  }
  wait(&state.stored[heads.stage], heads.phase ^ 1);
  if (threadIdx.x == 0) {
    state.heads[heads.stage] = {tile.image, share.group, share.filter_block, share.first_row(problem)};
  }
  find_outputs(problem, tile, shared_part(problem.shared.outputs) + heads.stage * problem.columns);
  heads.advance(kHeadStages);
  sync_threads(kConverterBarrier, kConverters);
}

// Has the pixels of a block's tiles copied, chunk by chunk, and converts them, and has the weights copied
// that each chunk is multiplied with.
template <typename Format, typename Element = typename Format::Element>
__device__ inline void convert_tiles(const Arguments<Element>& problem) {
  BlockState& state = state_of_block(problem);
  PixelSource* const sources = shared_part(problem.shared.sources);
  unsigned char* const pixel_stages = shared_part(problem.shared.pixels);
  const auto sync = [] { sync_threads(kConverterBarrier, kConverters); };
  const Works works(problem);
  Copies<Format> copies(
      problem, works,
      {shared_part(problem.shared.runs), reinterpret_cast<const Element**>(state.tile_images)}, pixel_stages,
      state.pixels_loaded);
  copies.start();
  wait_for_kernels_before();
  const WeightWindows<Format> windows_of(problem);
  for (int i = 2; i < problem.pixel_stages; ++i) {
    copies.advance(windows_of);
    copies.start();
  }
  OpenRing pixels, ring, weights, heads;
  int slot = -1;
  TileValues values;
  for (int work = works.first; work < works.end; ++work) {
    const Share share(problem, work);
    begin_work(problem, work, share.filter_block == 0 || work == works.first, heads, slot);
    const unsigned windows = windows_of.of(problem, share.block);
    const int passes = windows == 2 ? 2 : 1;
    // One warp's business, and as early as may be: where there is a stage more than the weights of a chunk
    // take they wait for chunks before it alone. A stage is free once the next is in use, which is of this
    // chunk else.
    const bool is_early = (problem.weight_stages - 1) * problem.group_steps >= problem.steps;
    const auto copy_weights = [&](bool now, int pass, int chunk) {
      if (!now || threadIdx.x / 32 != kConverters / 32 - 1) [[likely]]
        return;
      if (threadIdx.x % 32 == 0) {
        copy_chunk(problem, share.block, pass, chunk, state, shared_part(problem.shared.weights), weights);
      }
      __syncwarp();
    };
    values.begin_tile();
    for (int pass = 0; pass < passes; ++pass) {
      const bool is_last_pass = pass + 1 == passes;
      values.low = 0;
      BinadeWindow binades(values.top);
      for (int chunk = 0; chunk < problem.chunks; ++chunk) {
        copies.advance(windows_of);
        copies.start();
        copy_weights(is_early, pass, chunk);
        wait(&state.pixels_loaded[pixels.stage], pixels.phase);
        wait(&state.multiplied[ring.stage], ring.phase ^ 1);
        const unsigned char* const own = pixel_stages + pixels.stage * problem.pixel_stage_bytes;
        unsigned char* const stage = image_stage(problem, ring.stage);
        ValueRange<Element> range;
        convert_staged<Format, false>(problem, sources, own, chunk, binades, stage, range);
        // Now nobody reads what has been copied any more.
        const bool fits =
            sync_threads_and(kConverterBarrier, kConverters, !Format::kIsScaled || range.fits(binades));
        if constexpr (Format::kIsScaled) {
          if (!fits) [[unlikely]] {
            values = convert_apart<Format>(problem, own, chunk, pass + chunk == 0, range, values, stage);
            binades = BinadeWindow(values.top);
          } else {
            values.include(values.top, values.top - kBinades + 1);
          }
        }
        pixels.advance(problem.pixel_stages);
        const int exponent = Format::kIsScaled ? scale_exponent(values.top) + pass * kBinades : 0;
        commit_chunk(problem, ring,
                     {exponent, is_last_pass && chunk + 1 == problem.chunks && values.low == 0,
                      Format::kIsScaled && !values.can_be_multiplied(windows)});
        copy_weights(!is_early, pass, chunk);
      }
      // What lies below the windows of chunks.
      for (int i = 0; i < values.low; ++i) {
        const LowChunk again = shared_part(problem.shared.low_chunks)[i];
        copy_weights(is_early, pass, again.chunk);
        wait(&state.multiplied[ring.stage], ring.phase ^ 1);
        convert_again<Format>(problem, share, again.chunk, BinadeWindow(again.top),
                              image_stage(problem, ring.stage));
        commit_chunk(problem, ring,
                     {scale_exponent(again.top) + pass * kBinades, is_last_pass && i + 1 == values.low,
                      !values.can_be_multiplied(windows)});
        copy_weights(!is_early, pass, again.chunk);
      }
    }
  }
}

// Multiplies sums by a power of two.
template <int kTiles>
__device__ inline void scale_sums(float (&sums)[kTiles][4], int exponent) {
  const PowerOfTwo power(exponent);
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[t][i] = sums[t][i] * power.factor * power.rest;
  }
}

// Adds a product of 64 filters with all columns of a warpgroup.
template <typename Number, int kTiles>
__device__ inline void add_product(float (&sums)[kTiles][4], SharedMatrix filters, SharedMatrix image) {
  if constexpr (kTiles > kMostTilesOfProduct) {
    constexpr int kHalf = kTiles / 2;
    add_warpgroup_product<Number, kHalf>(reinterpret_cast<float (&)[kHalf][4]>(sums[0]), filters, image);
    add_warpgroup_product<Number, kHalf>(reinterpret_cast<float (&)[kHalf][4]>(sums[kHalf]), filters,
                                         image.advanced(kHalf * kTileColumns));
  } else {
    add_warpgroup_product<Number, kTiles>(sums, filters, image);
  }
}

// Multiplies the tiles of a block and stores their results: a warpgroup of two.
template <typename Format, int kTiles, typename Element = typename Format::Element>
__device__ inline void multiply_tiles(const Arguments<Element>& problem) {
  using Number = typename Format::Number;
  constexpr int kColumns = kTiles * kTileColumns;
  BlockState& state = state_of_block(problem);
  const int warpgroup = warpgroup_of_block() - (kThreads - kConsumers) / 128;
  // Two warpgroups share filters or columns.
  const int row_set = problem.row_sets == 2 ? warpgroup : 0;
  const int first_column = problem.row_sets == 2 ? 0 : warpgroup * kColumns;
  float* const staged =
      shared_part(problem.shared.results) + (threadIdx.x / 32 - (kThreads - kConsumers) / 32) * kStagedFloats;
  OpenRing images, weights, heads;
  const Works works(problem);
  for (int work = works.first; work < works.end; ++work) {
    float sums[kTiles][4];
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[t][i] = 0.0f;
    }
    // What the products that may not have ended yet are taken from.
    int image_in_use = -1, weights_in_use = -1;
    const auto release = [&] {
      if (image_in_use >= 0) arrive(&state.multiplied[image_in_use]);
      if (weights_in_use >= 0) arrive(&state.weights_multiplied[weights_in_use]);
      image_in_use = weights_in_use = -1;
    };
    wait(&state.converted[images.stage], images.phase);
    ImageStage own = state.images[images.stage];
    // Chunks of one scale after the other.
    for (bool is_last = false; !is_last;) {
      const int exponent = own.exponent;
      begin_warpgroup_products(sums);
      do {
        const SharedMatrix image =
            SharedMatrix::at(image_stage(problem, images.stage), problem.bundle_places.divisor)
                .advanced(first_column)
                .of_warp();
        // There is a step in every chunk, and loops that say so keep the compiler from waiting in between.
        int first = 0;
        do {
          wait(&state.weights_loaded[weights.stage], weights.phase);
          const SharedMatrix filters =
              SharedMatrix::at(
                  shared_part(problem.shared.weights) + weights.stage * problem.weight_stage_bytes, kRows)
                  .advanced(row_set * kStepUnits)
                  .of_warp();
          const int end = min(first + problem.group_steps, problem.steps);
          SharedMatrix of_step = filters;
          begin_warpgroup_products();
#pragma unroll 1
          do {
            add_product<Number>(sums, of_step, image.advanced(problem.step_places[first]));
            of_step = of_step.advanced(problem.row_sets * kStepUnits);
          } while (++first < end);
          end_warpgroup_products();
          await_warpgroup_products_but_the_last();
          release();
          weights_in_use = weights.stage;
          weights.advance(problem.weight_stages);
        } while (first < problem.steps);
        image_in_use = images.stage;
        images.advance(problem.image_stages);
        is_last = own.is_last;
        if (is_last) break;
        wait(&state.converted[images.stage], images.phase);
        own = state.images[images.stage];
        // A vote shows the compiler that all lanes go the same way: else it would wait after every product.
      } while (!Format::kIsScaled || __all_sync(~0u, own.exponent == exponent));
      await_warpgroup_products(sums);
      release();
      if (Format::kIsScaled && !is_last) scale_sums(sums, own.exponent - exponent);
    }
    const Head& head = state.heads[heads.stage];
    const int* const outputs =
        shared_part(problem.shared.outputs) + heads.stage * problem.columns + first_column;
    if (Format::kIsScaled && own.defines) {
      compute_as_defined<Format>(problem, head, row_set, outputs, kColumns);
    } else {
      store_results<Format>(problem, head, row_set, own.exponent, outputs, sums, staged);
    }
    arrive_as_warp(&state.stored[heads.stage]);
    heads.advance(kHeadStages);
  }
}

// Persistent blocks, which take tiles and blocks of filters; the kernel before prepares the weights. Since
// that one lets this start only when all before it have ended, pixels may be loaded at once.
template <typename Format, int kTiles>
__global__ void __launch_bounds__(kThreads, 1)
    kernel(const __grid_constant__ Arguments<typename Format::Element> problem) {
#if defined(__CUDA_ARCH__) && !defined(__CUDA_ARCH_FEAT_SM90_ALL)
#error "many_channels has code for compute capability 9.0 alone: compile it for sm_90a"
#else
  BlockState& state = state_of_block(problem);
  if (threadIdx.x == 0) {
    state.most = 0u, state.least_less_one = ~0u;
    for (int i = 0; i < problem.weight_stages; ++i) {
      make_transaction_barrier(&state.weights_loaded[i]);
      make_arrival_barrier(&state.weights_multiplied[i], kConsumers);
    }
    for (int i = 0; i < problem.image_stages; ++i) {
      make_arrival_barrier(&state.converted[i], kConverters / 32);
      make_arrival_barrier(&state.multiplied[i], kConsumers);
    }
    for (int i = 0; i < kHeadStages; ++i) make_arrival_barrier(&state.stored[i], kConsumers / 32);
    for (int i = 0; i < problem.pixel_stages; ++i) {
      make_transaction_barrier(&state.pixels_loaded[i], kConverters / 32);
    }
  }
  show_to_copies_and_products();
  __syncthreads();
  if (warpgroup_of_block() < (kThreads - kConsumers) / 128) {
    leave_registers<kRegistersOfProducers>();
    convert_tiles<Format>(problem);
  } else {
    take_registers<kRegistersOfConsumers>();
    wait_for_kernels_before();
    multiply_tiles<Format, kTiles>(problem);
  }
#endif
}

}  // namespace convswap::many_channels
