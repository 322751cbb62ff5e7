#pragma once

// Producer warps: they load pixels, weights and output offsets, publish the work tiles to the consumers, and
// convert the low windows of pixels. `Loads` is one of the structs of loads.cuh.

#include "cuda/many_channels/loads.cuh"
#include "cuda/many_channels/prepare.cuh"
#include "cuda/primitives/dependent_launch.cuh"
#include "cuda/primitives/pipeline_state.cuh"
#include "cuda/primitives/warpgroup.cuh"

namespace convswap::many_channels {

// Binades of the pixels of a work tile's prepared tile, over the K tiles of its split. The same in all
// producer threads.
template <typename Format>
struct TileRange {
  int low_windows = 0;          // sum over the K tiles
  int top = kFirstTop;          // highest binade of all K tiles
  bool use_naive_conv = false;  // wgmma cannot compute the work tile

  static constexpr int kBinadeBias = 2000;

  static __device__ int low_windows_of(PixelRange range) {
    return min(kMaxLowWindows, (range.top - range.bottom) / kBinades);
  }

  // Called by all lanes of a warp. `ranges` has the ranges of the work tile's K tiles.
  __device__ TileRange(const PixelRange* ranges, int k_tiles, unsigned weight_windows) {
    if constexpr (Format::kIsScaled) {
      // kBinadeBias makes the exponents unsigned, for unsigned warp reductions.
      unsigned highest = 0u, lowest = ~0u;
      for (int i = threadIdx.x % 32; i < k_tiles; i += 32) {
        const PixelRange range = ranges[i];
        if (range.top == PixelRange::kAllZeros) continue;
        highest = max(highest, static_cast<unsigned>(range.top + kBinadeBias));
        lowest = min(lowest, static_cast<unsigned>(range.bottom + kBinadeBias));
        low_windows += low_windows_of(range);
      }
      highest = __reduce_max_sync(~0u, highest), lowest = __reduce_min_sync(~0u, lowest);
      low_windows = static_cast<int>(__reduce_add_sync(~0u, static_cast<unsigned>(low_windows)));
      use_naive_conv = weight_windows > kMaxWeightWindows;
      if (highest == 0u) return;  // all K tiles are zeros
      top = static_cast<int>(highest) - kBinadeBias;
      use_naive_conv = use_naive_conv || highest == PixelRange::kNotFinite + kBinadeBias ||
                       highest - lowest >= kMaxBinades - kBinades * (weight_windows - 1);
      if (use_naive_conv) low_windows = 0;
    }
  }
};

// Pass over the K tiles of a work tile with one binade window of the weights.
struct WindowPass {
  int window;
  bool is_last;
};

// Producer warp: publishes a work tile's description and loads its output offsets.
template <typename Loads, typename Element>
__device__ inline void publish_tile_info(const Arguments<Element>& problem, const WorkTile& work_tile,
                                         DynamicPipelineState& tile_info_pipeline) {
  BlockState& state = block_state(problem);
  Loads::wait(&state.tile_done[tile_info_pipeline.stage], tile_info_pipeline.phase ^ 1);
  const int bytes = problem.tile_positions * static_cast<int>(sizeof(int));
  Loads::load(
      &state.tile_ready[tile_info_pipeline.stage], bytes,
      [&] {
        state.tile_info[tile_info_pipeline.stage] = {TileStart(problem, work_tile.output_tile).image,
                                                     work_tile.conv_group, work_tile.filter_block,
                                                     work_tile.first_row(), work_tile.split};
      },
      [&](auto copy) {
        copy(shared_output_offsets(problem, tile_info_pipeline.stage),
             global_output_offsets(problem, work_tile), bytes);
      });
  tile_info_pipeline.advance(kTileInfoStages);
}

// Producer warp: loads the pixels of a work tile's K tiles, as soon as stages are empty.
template <typename Format, typename Loads, typename Element = typename Format::Element>
__device__ inline void load_pixels(const Arguments<Element>& problem, const WorkTile& work_tile,
                                   const TileRange<Format>& tile_range, WindowPass window_pass,
                                   DynamicPipelineState& pipeline) {
  BlockState& state = block_state(problem);
  const long long first =
      first_prepared_k_tile(problem, work_tile.prepared_tile, work_tile.conv_group) + work_tile.first_k_tile;
  const unsigned char* from = prepared_pixels(problem, first) +
                              work_tile.output_tile_in_prepared * problem.tile_positions * kVectorBytes;
  PixelRange range{};  // each lane has the range of one of 32 K tiles
  for (int i = 0; i < work_tile.k_tiles; ++i) {
    int top = 0;
    if constexpr (Format::kIsScaled) {
      if (i % 32 == 0) {
        range =
            problem.pixel_ranges[first + min(i + static_cast<int>(threadIdx.x % 32), work_tile.k_tiles - 1)];
      }
      top = __shfl_sync(~0u, range.top, i % 32);
      if (top == PixelRange::kAllZeros) top = tile_range.top;
    }
    Loads::wait(&state.pixels_empty[pipeline.stage], pipeline.phase ^ 1);
    Loads::load(
        &state.pixels_full[pipeline.stage], problem.pixel_stage_bytes,
        [&] {
          state.pixel_stage_info[pipeline.stage] = {
              Format::kIsScaled ? scale_exponent(top) + window_pass.window * kBinades : 0,
              window_pass.is_last && i + 1 == work_tile.k_tiles && tile_range.low_windows == 0,
              tile_range.use_naive_conv};
        },
        [&](auto copy) {
          unsigned char* const to = pixel_stage(problem, pipeline.stage);
          for (int load = 0; load < problem.tma_loads; ++load) {
            copy(to + load * problem.tma_load_bytes, from + load * problem.tma_load_stride,
                 problem.tma_load_bytes);
          }
        });
    from += problem.prepared_k_tile_bytes;
    pipeline.advance(problem.pixel_stages);
  }
}

// Producer warp: loads the weights of `k_tiles` K tiles, as soon as stages are empty.
template <typename Loads, typename Element>
__device__ inline void load_weights(const Arguments<Element>& problem, int global_filter_block, int window,
                                    int k_tile, int k_tiles, DynamicPipelineState& pipeline) {
  BlockState& state = block_state(problem);
  const unsigned char* from = prepared_k_tile_weights(problem, global_filter_block, window, k_tile);
  constexpr int kStepBytes = kStepUnits * 16;
  for (; k_tiles > 0; --k_tiles) {
    for (int steps_left = problem.steps; steps_left > 0; steps_left -= problem.stage_steps) {
      const int bytes = min(problem.stage_steps, steps_left) * kStepBytes;
      Loads::wait(&state.weights_empty[pipeline.stage], pipeline.phase ^ 1);
      Loads::load(
          &state.weights_full[pipeline.stage], bytes, [] {},
          [&](auto copy) { copy(weight_stage(problem, pipeline.stage), from, bytes); });
      from += bytes;
      pipeline.advance(problem.weight_stages);
    }
  }
}

// Converts the values below the K tiles' first windows into pixel stages. Called by all producers.
template <typename Format, typename Loads, typename Element = typename Format::Element>
__device__ __noinline__ void produce_low_windows(const Arguments<Element>& problem, const WorkTile& work_tile,
                                                 const TileRange<Format>& tile_range, WindowPass window_pass,
                                                 DynamicPipelineState& pipeline,
                                                 DynamicPipelineState& weights) {
  BlockState& state = block_state(problem);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const auto sync = [] { named_barrier_sync(kProducerBarrier, kProducerThreads); };
  const PixelRange* const ranges =
      problem.pixel_ranges + first_prepared_k_tile(problem, work_tile.prepared_tile, work_tile.conv_group);
  int converted = 0;
  for (int k_tile = work_tile.first_k_tile; k_tile < work_tile.first_k_tile + work_tile.k_tiles; ++k_tile) {
    const PixelRange range = ranges[k_tile];
    for (int i = 1; i <= TileRange<Format>::low_windows_of(range); ++i) {
      const int top = range.top - i * kBinades;
      // Only the pixel warp waits, and tells the weight warp the stage. The weight warp does not track this
      // pipeline. It may also lag by more than one mbarrier phase, which a parity cannot express.
      if (warp == kPixelWarp) {
        Loads::wait(&state.pixels_empty[pipeline.stage], pipeline.phase ^ 1);
        if (lane == 0) state.low_stage = pipeline.stage;
      }
      sync();
      convert_window<Format>(problem, work_tile, k_tile, top, pixel_stage(problem, state.low_stage));
      Loads::fence();
      sync();
      ++converted;
      if (warp == kPixelWarp) {
        Loads::publish(&state.pixels_full[pipeline.stage], [&] {
          state.pixel_stage_info[pipeline.stage] = {
              scale_exponent(top) + window_pass.window * kBinades,
              window_pass.is_last && converted == tile_range.low_windows, false};
        });
        pipeline.advance(problem.pixel_stages);
      }
      // Weights come last, because load_weights may wait until the consumers have multiplied the pixels.
      if (warp == kWeightWarp)
        load_weights<Loads>(problem, work_tile.global_filter_block, window_pass.window, k_tile, 1, weights);
    }
  }
}

// Producer loop: loads the prepared pixels and weights of the block's work tiles and publishes the work
// tiles. The two warps run independently, except in low windows, which they convert together.
template <typename Format, typename Loads, typename Element = typename Format::Element>
__device__ inline void produce_tiles(const Arguments<Element>& problem) {
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);
  DynamicPipelineState pixels, weights, tile_info_pipeline;
  const TileScheduler scheduler(problem);
  // Constant weights were prepared before this run, so the weights of the first K tiles can be loaded before
  // griddepcontrol_wait, which waits for the pixels: as many K tiles as fit the empty stages. Only 16-bit
  // formats do so.
  int k_tiles_ahead = 0;
  if (!Format::kIsScaled && problem.weights_are_constant && warp == kWeightWarp &&
      scheduler.first < scheduler.end) {
    const WorkTile work_tile(problem, scheduler.first);
    const int stages_per_k_tile = (problem.steps + problem.stage_steps - 1) / problem.stage_steps;
    k_tiles_ahead = min(work_tile.k_tiles, problem.weight_stages / stages_per_k_tile);
    load_weights<Loads>(problem, work_tile.global_filter_block, 0, work_tile.first_k_tile, k_tiles_ahead,
                        weights);
  }
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  for (int work_index = scheduler.first; work_index < scheduler.end; ++work_index) {
    const WorkTile work_tile(problem, work_index);
    if (warp == kWeightWarp) publish_tile_info<Loads>(problem, work_tile, tile_info_pipeline);
    const unsigned windows = weight_windows<Format>(problem, work_tile.global_filter_block);
    const TileRange<Format> tile_range(
        problem.pixel_ranges + first_prepared_k_tile(problem, work_tile.prepared_tile, work_tile.conv_group) +
            work_tile.first_k_tile,
        work_tile.k_tiles, windows);
    const int passes = windows == kMaxWeightWindows ? kMaxWeightWindows : 1;
    for (int window = 0; window < passes; ++window) {
      const WindowPass window_pass{window, window + 1 == passes};
      if (warp == kPixelWarp) {
        load_pixels<Format, Loads>(problem, work_tile, tile_range, window_pass, pixels);
      } else if (warp == kWeightWarp) {
        load_weights<Loads>(problem, work_tile.global_filter_block, window,
                            work_tile.first_k_tile + k_tiles_ahead, work_tile.k_tiles - k_tiles_ahead,
                            weights);
        k_tiles_ahead = 0;
      }
      if constexpr (Format::kIsScaled) {
        if (tile_range.low_windows > 0) [[unlikely]] {
          produce_low_windows<Format, Loads>(problem, work_tile, tile_range, window_pass, pixels, weights);
        }
      }
    }
  }
}

}  // namespace convswap::many_channels
