#pragma once

// The kernels of the algorithm `many_channels`; many_channels.cc tells the idea, plan.cc fills the arguments.

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
__device__ __noinline__ TileValues convert_apart(const Arguments<Element>& problem, const Element* x,
                                                 int chunk, bool is_first, ValueRange<Element> range,
                                                 TileValues values, unsigned char* stage, int* low) {
  const auto sync = [] { sync_threads(kConverterBarrier, kConverters); };
  const ValueRange<Element> whole = reduce_threads(range, state_of_block(problem), threadIdx.x == 0, sync);
  if (!whole.is_finite()) {
    values.are_finite = false;
    return values;
  }
  // Not lower than before, so that few chunks change the scale of the sums.
  values.top = is_first ? whole.window_top() : max(values.top, whole.top());
  values.include(whole.top(), whole.bottom());
  convert_window<Format>(problem, x, chunk, shared_part(problem.shared.sources), BinadeWindow(values.top),
                         stage);
  for (int i = 1; i <= kMostLowWindows && whole.bottom() <= values.top - i * kBinades; ++i) {
    if (threadIdx.x == 0) {
      shared_part(problem.shared.low_chunks)[*low] = {chunk, values.top - i * kBinades};
    }
    ++*low;
  }
  sync();
  return values;
}

// Converts the tiles of a block, chunk by chunk, and has the weights copied that each is multiplied with.
template <typename Format, typename Element = typename Format::Element>
__device__ inline void convert_tiles(const Arguments<Element>& problem) {
  BlockState& state = state_of_block(problem);
  PixelSource* const sources = shared_part(problem.shared.sources);
  const auto sync = [] { sync_threads(kConverterBarrier, kConverters); };
  OpenRing ring, weights;
  TileValues values;
  long long known_tile = -1;
  for (long long work = blockIdx.x; work < problem.works; work += gridDim.x) {
    const Share share(problem, work);
    const TileStart tile(problem, share.tile);
    if (share.tile != known_tile) {
      known_tile = share.tile;
      sync();
      find_sources(problem, tile, sources);
      sync();
    }
    const Element* const x = problem.x + (tile.image * problem.in_channels +
                                          static_cast<long long>(share.group) * problem.channels) *
                                             problem.input_plane;
    BatchCursor<Element> next(problem, x, 0);
    Batch<Format> batch;
    batch.load(problem, next, sources);
    wait_for_kernels_before();
    const unsigned windows = weight_windows<Format>(problem, share);
    const int passes_of_tile = windows == 2 ? 2 : 1;
    // One warp's business, and as early as may be: where there is a stage more than the weights of a chunk
    // take they wait for chunks before it alone. A stage is free once the next is in use, which is of this
    // chunk else.
    const bool is_early = (problem.weight_stages - 1) * problem.group_steps >= problem.steps;
    const auto copy = [&](bool now, int window, int chunk) {
      if (!now || threadIdx.x / 32 != kConverters / 32 - 1) [[likely]]
        return;
      if (threadIdx.x % 32 == 0) {
        copy_chunk(problem, share, window, chunk, state, shared_part(problem.shared.weights), weights);
      }
      __syncwarp();
    };
    values.begin_tile();
    for (int window = 0; window < passes_of_tile; ++window) {
      const bool is_last_pass = window + 1 == passes_of_tile;
      int low = 0;
      if (window > 0) [[unlikely]] {
        next = BatchCursor<Element>(problem, x, 0);
        batch.load(problem, next, sources);
      }
      BinadeWindow binades(values.top);
      for (int chunk = 0; chunk < problem.chunks; ++chunk) {
        copy(is_early, window, chunk);
        wait(&state.multiplied[ring.stage], ring.phase ^ 1);
        unsigned char* const stage = image_stage(problem, ring.stage);
        ValueRange<Element> range;
        for (bool is_done = false; !is_done;) {
          batch.template convert<false>(problem.bundle_places.divisor, binades, stage, range);
          next.advance(problem);
          is_done = next.chunk != chunk;
          // Before the loads, which it would wait for.
          if (is_done) show_to_copies_and_products();
          if (next.chunk < problem.chunks) batch.load(problem, next, sources);
        }
        if constexpr (Format::kIsScaled) {
          if (!sync_threads_and(kConverterBarrier, kConverters, range.fits(binades))) [[unlikely]] {
            values =
                convert_apart<Format>(problem, x, chunk, window + chunk == 0, range, values, stage, &low);
            binades = BinadeWindow(values.top);
            // Again, since what is kept while a function is called would be kept in local memory by all
            // chunks.
            if (next.chunk < problem.chunks) batch.load(problem, next, sources);
          } else {
            values.include(values.top, values.top - kBinades + 1);
          }
        }
        const int exponent = Format::kIsScaled ? scale_exponent(values.top) + window * kBinades : 0;
        commit_chunk(problem, ring,
                     {exponent, is_last_pass && chunk + 1 == problem.chunks && low == 0,
                      Format::kIsScaled && !values.can_be_multiplied(windows)});
        copy(!is_early, window, chunk);
      }
      // What lies below the windows of chunks.
      for (int i = 0; i < low; ++i) {
        const LowChunk own = shared_part(problem.shared.low_chunks)[i];
        copy(is_early, window, own.chunk);
        wait(&state.multiplied[ring.stage], ring.phase ^ 1);
        convert_window<Format>(problem, x, own.chunk, sources, BinadeWindow(own.top),
                               image_stage(problem, ring.stage));
        commit_chunk(problem, ring,
                     {scale_exponent(own.top) + window * kBinades, is_last_pass && i + 1 == low,
                      !values.can_be_multiplied(windows)});
        copy(!is_early, window, own.chunk);
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
  int* const outputs = shared_part(problem.shared.outputs) + warpgroup * kColumns;
  float* const staged =
      shared_part(problem.shared.results) + (threadIdx.x / 32 - (kThreads - kConsumers) / 32) * kStagedFloats;
  OpenRing images, weights;
  long long known_tile = -1;
  for (long long work = blockIdx.x; work < problem.works; work += gridDim.x) {
    const Share share(problem, work);
    const TileStart tile(problem, share.tile);
    if (share.tile != known_tile) {
      known_tile = share.tile;
      sync_warpgroup(warpgroup_of_block());
      find_outputs(problem, tile, first_column, kColumns, outputs);
      sync_warpgroup(warpgroup_of_block());
    }
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
    if (Format::kIsScaled && own.defines) {
      compute_as_defined<Format>(problem, tile, share, row_set, outputs, kColumns);
    } else {
      store_results<Format>(problem, tile, share, row_set, own.exponent, outputs, sums, staged);
    }
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
