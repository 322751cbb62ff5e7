#pragma once

// The kernel of the algorithm `few_channels`; few_channels.cc tells the idea, plan.cc fills the arguments.

#include "cuda/definition.cuh"
#include "cuda/few_channels/input.cuh"
#include "cuda/few_channels/tile.cuh"
#include "cuda/few_channels/unit.cuh"
#include "cuda/few_channels/weights.cuh"
#include "cuda/primitives/dependent_launch.cuh"

namespace convswap::few_channels {

// Computes a tile as the definition says, for data with infinities or NaN: the tensor core would multiply
// them with the zeros that fill its depth.
template <typename Element>
__device__ __noinline__ void compute_as_defined(const Arguments<Element>& problem, Tile tile,
                                                int first_filter, int filters) {
  const int first_row = tile.first_row << problem.log2_folds;
  const int rows = min(problem.tile_rows << problem.log2_folds, problem.output_height - first_row);
  const int columns = min(problem.places_quads * kQuad, problem.output_width - tile.first_column);
  const int images = min(problem.tile_images, problem.batch - tile.n);
  const int count = images * filters * rows * columns;
  for (int i = threadIdx.x; i < count; i += blockDim.x) {
    const int q = tile.first_column + i % columns;
    const int p = first_row + i / columns % rows;
    const int k = first_filter + i / (columns * rows) % filters;
    const long long n = tile.n + i / (columns * rows) / filters;
    float sum = defined_sum<Element, float>(problem, problem.definition, n, k, 0, p, q, problem.first_channel,
                                            problem.pass_channels);
    Element* y =
        problem.y + ((n * problem.out_channels + k) * problem.output_height + p) * problem.output_width + q;
    if (problem.b != nullptr) sum += static_cast<float>(problem.b[k]);
    if (problem.accumulates) sum += static_cast<float>(*y);
    *y = static_cast<Element>(sum);
  }
}

// Persistent blocks: grid.x shares the tiles, grid.y the groups and, where the weights of a group do not
// fit, parts of its filters.
template <typename Format, int kBundle, int kTaps, int kTiles>
__global__ void __launch_bounds__(kMostThreads, 1)
    kernel(const __grid_constant__ Arguments<typename Format::Element> problem) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#error "few_channels needs compute capability 8.0 or newer"
#else
  using Element = typename Format::Element;
  extern __shared__ __align__(16) unsigned char shared[];
  wait_for_kernels_before();
  const int bundle_slots = problem.steps * kBundlesPerStep;
  const int padded_filters = problem.filter_blocks * kTiles * kFiltersPerTile;
  // The parts of shared memory, found each time: a register is worth more than an addition.
  const auto part = [&](auto offset) { return offset.in(shared + computed_here(0u)); };
  const auto raw = [&] { return reinterpret_cast<Element*>(part(problem.shared.raw)); };
  const auto lines = [&] { return reinterpret_cast<StagedLine<kBundle>*>(part(problem.shared.lines)); };
  const auto tops = [&] { return part(problem.shared.tops); };
  const auto state = [&]() -> BlockState& { return *part(problem.shared.state); };

  const int group = blockIdx.y / problem.filter_splits;
  const int first_filter = blockIdx.y % problem.filter_splits * padded_filters;
  const int filters = min(padded_filters, problem.folded_filters - first_filter);
  const int k = (group * problem.folded_filters + first_filter) >> problem.log2_folds;
  const int first_channel = group * problem.channels + problem.first_channel;
  const auto w = [&] {
    return problem.w +
           static_cast<long long>(k) * problem.channels * problem.filter_height * problem.filter_width;
  };

  copy_tile(problem, Tile(problem, blockIdx.x), first_channel, raw());
  commit_copies();
  if (threadIdx.x == 0) {
    // One by one: NVRTC has what is set as a whole loaded from global memory, for which all wait.
    state().most = 0u, state().least_less_one = ~0u;
    state().weight_windows = 1u;
    state().is_far = 0u;
  }
  for (int i = threadIdx.x; i < bundle_slots; i += blockDim.x) {
    part(problem.shared.bundles)[i] = filter_bundle<kBundle>(problem, i);
  }
  find_places<kBundle>(problem, part(problem.shared.places));
  for (int i = threadIdx.x; i < problem.zero_words; i += blockDim.x) {
    reinterpret_cast<unsigned*>(raw())[problem.raw_words + i] = 0u;
  }
  for (int i = threadIdx.x; i < padded_filters; i += blockDim.x) tops()[i] = kFirstTop;
  __syncthreads();

  // Weights and pixels are converted by a guess of how large they are, and again in the rare case that it
  // does not hold.
  bool weights_are_finite = true;
  bool are_measured = false;
  int weight_windows = 1;
  int top = kFirstTop;
  int scaled_for = kFirstTop + 1;  // what the scales were last found for
  for (int weight_window = 0; weight_window < weight_windows; ++weight_window) {
    const ValueRange<Element> weight_range = stage_weights<Format, kBundle, kTaps, kTiles>(
        problem, w(), part(problem.shared.bundles), filters, tops(), weight_window,
        problem.shared.weights(shared + computed_here(0u)));
    if (!are_measured && !__syncthreads_and(fits<Format>(weight_range, kFirstTop))) {
      const int taps = problem.filter_height * problem.filter_width;
      const auto weights_of = [&](int filter) {
        const long long folded = filter >> problem.log2_folds;
        return w() + (folded * problem.channels + problem.first_channel) * taps;
      };
      measure_filters<Format, true>(weights_of, filters, problem.pass_channels * taps, tops(),
                                    &state().weight_windows);
      __syncthreads();
      are_measured = true;
      weights_are_finite = state().weight_windows != ~0u;
      if (weights_are_finite) {
        weight_windows = static_cast<int>(state().weight_windows);
        --weight_window;
        continue;
      }
    }
    are_measured = true;
    if (weight_window > 0) {
      copy_tile(problem, Tile(problem, blockIdx.x), first_channel, raw());
      commit_copies();
      scaled_for = top + 1;
    }

    for (int index = blockIdx.x; index < problem.tiles; index += gridDim.x) {
      const Tile tile(problem, index);
      if (index == blockIdx.x || !share_lines(problem, tile, Tile(problem, index - gridDim.x))) {
        find_lines<kBundle>(problem, tile, first_channel, lines());
      }
      wait_for_copies<0>();
      __syncthreads();
      if (threadIdx.x == 0) state().work = work_of(problem, tile, k);
      const ValueRange<Element> range = stage_tile<Format, kBundle, false>(
          problem, tile, lines(), raw(), BinadeWindow(top), part(problem.shared.staged));
      bool is_staged = true;
      int windows = 1;
      if (!__syncthreads_and(fits<Format>(range, top) && weights_are_finite)) {
        const ValueRange<Element> whole =
            reduce_threads(range, state(), threadIdx.x == 0, [] { __syncthreads(); });
        is_staged = false;
        windows = weights_are_finite && whole.is_finite() ? whole.windows() : 0;
        if (windows > 0) top = whole.window_top();
      }
      const auto copy_next = [&] {
        if (index + static_cast<int>(gridDim.x) < problem.tiles) {
          copy_tile(problem, Tile(problem, index + gridDim.x), first_channel, raw());
        }
        commit_copies();
      };
      if (windows == 0) {
        copy_next();
        if (weight_window == 0) compute_as_defined(problem, tile, k, filters >> problem.log2_folds);
        continue;
      }

      for (int window = 0; window < windows; ++window) {
        const int window_top = top - window * kBinades;
        const bool is_first = weight_window + window == 0;
        if constexpr (Format::kIsScaled) {
          if (!is_staged) {
            __syncthreads();
            stage_tile<Format, kBundle, true>(problem, tile, lines(), raw(), BinadeWindow(window_top),
                                              part(problem.shared.staged));
            scaled_for = window_top + 1;
          }
        }
        if (scaled_for != window_top) {
          if (threadIdx.x == 0) state().is_far = 0;
          __syncthreads();
          find_scales<Format>(problem, filters, padded_filters, tops(), weight_window, window_top,
                              problem.b == nullptr || !is_first ? nullptr : problem.b + k,
                              part(problem.shared.scales), part(problem.shared.rests), &state());
          __syncthreads();
          scaled_for = window_top;
        }
        is_staged = false;
        if (window + 1 == windows) copy_next();

        compute_tile<Format, kBundle, kTaps, kTiles>(
            problem, state().work, filters, problem.accumulates || !is_first, state().is_far != 0, shared);
      }
    }
    if (weight_window + 1 < weight_windows) __syncthreads();
  }
#endif
}

}  // namespace convswap::few_channels
