#pragma once

// Producers: the warps of a block that have copied what the others multiply.

#include "cuda/many_channels/prepare.cuh"
#include "cuda/primitives/dependent_launch.cuh"
#include "cuda/primitives/warpgroup.cuh"

namespace convswap::many_channels {

// What a block's producers know of the values of a tile, the same in all of them.
template <typename Format>
struct TileValues {
  int low = 0;           // windows below those of chunks, of all chunks
  int top = kFirstTop;   // of the highest chunk
  bool defines = false;  // the tile cannot be multiplied with weights of so many windows

  static constexpr int kBelowAll = 2000;

  static __device__ int low_windows(PixelRange range) {
    return min(kMostLowWindows, (range.top - range.bottom) / kBinades);
  }

  // By whole warps. `ranges`: of the tile's chunks.
  __device__ TileValues(const PixelRange* ranges, int chunks, unsigned weight_windows) {
    if constexpr (Format::kIsScaled) {
      // Counted from below all exponents, since a warp reduces what is not negative.
      unsigned highest = 0u, lowest = ~0u;
      for (int i = threadIdx.x % 32; i < chunks; i += 32) {
        const PixelRange own = ranges[i];
        if (own.top == PixelRange::kZeros) continue;
        highest = max(highest, static_cast<unsigned>(own.top + kBelowAll));
        lowest = min(lowest, static_cast<unsigned>(own.bottom + kBelowAll));
        low += low_windows(own);
      }
      highest = __reduce_max_sync(~0u, highest), lowest = __reduce_min_sync(~0u, lowest);
      low = static_cast<int>(__reduce_add_sync(~0u, static_cast<unsigned>(low)));
      defines = weight_windows > kMostWeightWindows;
      if (highest == 0u) return;  // all are zeros
      top = static_cast<int>(highest) - kBelowAll;
      defines = defines || highest == PixelRange::kNotFinite + kBelowAll ||
                highest - lowest >= kMostBinades - kBinades * (weight_windows - 1);
      if (defines) low = 0;
    }
  }
};

// Once through the chunks of a tile, with the weights of one of their windows.
struct Pass {
  int window;
  bool is_last;
};

// Tells consumers of a tile: by a warp.
template <typename Element>
__device__ inline void tell_of_tile(const Arguments<Element>& problem, const Share& share,
                                    DynamicPipelineState& heads) {
  BlockState& state = state_of_block(problem);
  mbarrier_wait(&state.stored[heads.stage], heads.phase ^ 1);
  if (elect_one()) {
    state.heads[heads.stage] = {TileStart(problem, share.tile).image, share.group, share.filter_block,
                                share.first_row(), share.split};
    const int bytes = problem.columns * static_cast<int>(sizeof(int));
    mbarrier_arrive_expect_tx(&state.told[heads.stage], bytes);
    tma_load_1d(outputs_of_head(problem, heads.stage), prepared_outputs(problem, share), bytes,
                &state.told[heads.stage]);
  }
  heads.advance(kHeadStages);
}

// Has the pixels of a tile's chunks copied as far ahead as there is room: by a warp.
template <typename Format, typename Element = typename Format::Element>
__device__ inline void copy_pixels(const Arguments<Element>& problem, const Share& share,
                                   const TileValues<Format>& values, Pass pass, DynamicPipelineState& ring) {
  BlockState& state = state_of_block(problem);
  const long long first = first_prepared(problem, share.prepared, share.group) + share.first_chunk;
  const unsigned char* from = prepared_pixels(problem, first) + share.part * problem.columns * kPlaceBytes;
  PixelRange range{};  // of a chunk for each lane
  for (int i = 0; i < share.chunks; ++i) {
    int top = 0;
    if constexpr (Format::kIsScaled) {
      if (i % 32 == 0) {
        range = problem.pixel_ranges[first + min(i + static_cast<int>(threadIdx.x % 32), share.chunks - 1)];
      }
      top = __shfl_sync(~0u, range.top, i % 32);
      if (top == PixelRange::kZeros) top = values.top;
    }
    mbarrier_wait(&state.multiplied[ring.stage], ring.phase ^ 1);
    if (elect_one()) {
      TmaMbarrier* const loaded = &state.loaded[ring.stage];
      state.images[ring.stage] = {Format::kIsScaled ? scale_exponent(top) + pass.window * kBinades : 0,
                                  pass.is_last && i + 1 == share.chunks && values.low == 0, values.defines};
      mbarrier_arrive_expect_tx(loaded, problem.image_stage_bytes);
      unsigned char* const to = image_stage(problem, ring.stage);
      for (int piece = 0; piece < problem.pieces; ++piece) {
        tma_load_1d(to + piece * problem.piece_bytes, from + piece * problem.piece_distance,
                    problem.piece_bytes, loaded);
      }
    }
    from += problem.prepared_bytes;
    ring.advance(problem.image_stages);
  }
}

// Converts what lies below the windows of chunks, by all producers.
template <typename Format, typename Element = typename Format::Element>
__device__ __noinline__ void produce_low_windows(const Arguments<Element>& problem, const Share& share,
                                                 const TileValues<Format>& values, Pass pass,
                                                 DynamicPipelineState& ring, DynamicPipelineState& weights) {
  BlockState& state = state_of_block(problem);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const auto sync = [] { named_barrier_sync(kProducerBarrier, kProducers); };
  const PixelRange* const ranges =
      problem.pixel_ranges + first_prepared(problem, share.prepared, share.group);
  int done = 0;
  for (int chunk = share.first_chunk; chunk < share.first_chunk + share.chunks; ++chunk) {
    const PixelRange own = ranges[chunk];
    for (int i = 1; i <= TileValues<Format>::low_windows(own); ++i) {
      const int top = own.top - i * kBinades;
      // Others may be so far ahead that they would take a phase for the one after the next, and they do not
      // know the stage.
      if (warp == kPixelWarp) {
        mbarrier_wait(&state.multiplied[ring.stage], ring.phase ^ 1);
        if (lane == 0) state.low_stage = ring.stage;
      }
      sync();
      convert_low<Format>(problem, share, chunk, top, image_stage(problem, state.low_stage));
      sync();
      ++done;
      if (warp == kPixelWarp) {
        if (lane == 0) {
          state.images[ring.stage] = {scale_exponent(top) + pass.window * kBinades,
                                      pass.is_last && done == values.low, false};
          mbarrier_arrive(&state.loaded[ring.stage]);
        }
        ring.advance(problem.image_stages);
      }
      // The weights come last: they may wait until the pixels are being multiplied.
      if (warp == kWeightWarp) copy_weights(problem, share.block, pass.window, chunk, 1, weights);
    }
  }
}

// Has the prepared pixels and weights of a block's tiles copied, chunk by chunk, and tells consumers of the
// tiles. Its two warps go their own ways. A warp alone takes some six cycles for an instruction, and
// so little is done for a chunk.
template <typename Format, typename Element = typename Format::Element>
__device__ inline void produce_tiles(const Arguments<Element>& problem) {
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);
  DynamicPipelineState pixels, weights, heads;
  const Works works(problem);
  // Of weights that have been prepared for all runs, those of the first chunks do not wait for the pixels.
  int ahead = 0;
  if (!Format::kIsScaled && problem.weights_are_constant && warp == kWeightWarp && works.first < works.end) {
    const Share share(problem, works.first);
    const int stages_of_chunk = (problem.steps + problem.group_steps - 1) / problem.group_steps;
    ahead = min(share.chunks, problem.weight_stages / stages_of_chunk);
    copy_weights(problem, share.block, 0, share.first_chunk, ahead, weights);
  }
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  for (int work = works.first; work < works.end; ++work) {
    const Share share(problem, work);
    if (warp == kWeightWarp) tell_of_tile(problem, share, heads);
    const unsigned windows = weight_windows<Format>(problem, share.block);
    const TileValues<Format> values(
        problem.pixel_ranges + first_prepared(problem, share.prepared, share.group) + share.first_chunk,
        share.chunks, windows);
    const int passes = windows == kMostWeightWindows ? kMostWeightWindows : 1;
    for (int window = 0; window < passes; ++window) {
      const Pass pass{window, window + 1 == passes};
      if (warp == kPixelWarp) {
        copy_pixels<Format>(problem, share, values, pass, pixels);
      } else if (warp == kWeightWarp) {
        copy_weights(problem, share.block, window, share.first_chunk + ahead, share.chunks - ahead, weights);
        ahead = 0;
      }
      if constexpr (Format::kIsScaled) {
        if (values.low > 0) [[unlikely]] {
          produce_low_windows<Format>(problem, share, values, pass, pixels, weights);
        }
      }
    }
  }
}

}  // namespace convswap::many_channels
