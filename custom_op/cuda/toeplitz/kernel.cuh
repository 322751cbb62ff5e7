#pragma once

// The kernel of the algorithm `toeplitz`; toeplitz.cc tells the idea, plan.cuh fills the arguments.

#include "cuda/primitives/warpgroup_multiply.cuh"
#include "cuda/toeplitz/epilogue.cuh"
#include "cuda/toeplitz/input.cuh"
#include "cuda/toeplitz/results.cuh"
#include "cuda/toeplitz/weights.cuh"

namespace convswap::toeplitz {

// A tile of y for data with infinities or NaN: the tensor core would multiply them with the matrix's zeros.
template <bool kFinishes, typename Element>
__device__ __noinline__ void compute_as_defined(const Arguments<Element>& problem, int index,
                                                int first_filter) {
  const Tile tile = Tile::of<kFinishes>(problem, index);
  const int count = tile.images * problem.filters * tile.y_rows * tile.y_columns;
  for (int i = thread_of_team(); i < count; i += kTeamThreads) {
    const int q = tile.first_column + i % tile.y_columns;
    const int p = tile.y_row + i / tile.y_columns % tile.y_rows;
    const int k = first_filter + i / (tile.y_columns * tile.y_rows) % problem.filters;
    const long long n = tile.n + i / (tile.y_columns * tile.y_rows) / problem.filters;
    problem.y[((n * problem.out_channels + k) * problem.y_height + p) * problem.y_width + q] =
        static_cast<Element>(naive_result<Element, float>(problem.definition, n, k, 0, p, q));
  }
}

// Begins sums = kRows rows of the input, from `cores` on, times the matrix of one filter block.
template <typename Format, int kTiles, typename Element = typename Format::Element>
__device__ inline void begin_sums(const Arguments<Element>& problem, SharedMatrix cores, SharedMatrix matrix,
                                  float (&sums)[kTiles][4]) {
  constexpr unsigned kStepUnits = kTiles * 16;  // of 16 bytes
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
#pragma unroll
    for (int j = 0; j < 4; ++j) sums[t][j] = 0.0f;
  }
  begin_warpgroup_products(sums);
  cores = cores.of_warp(), matrix = matrix.of_warp();
#pragma unroll
  for (int term = 0; term < Format::kTerms; ++term) {
    const SharedMatrix a = cores.advanced(Format::pixel_part(term) * problem.part_cores);
    const SharedMatrix b = matrix.advanced(Format::weight_part(term) * problem.steps * kStepUnits);
    // Two at a time and no rest: after a loop with a rest the compiler waits for every product.
#pragma unroll 1
    for (int step = 0; step < problem.steps; step += 2) {
#pragma unroll
      for (int i = step; i < step + 2; ++i) {
        add_warpgroup_product<typename Format::Number, kTiles>(sums, a.advanced(problem.step_places[i]),
                                                               b.advanced(i * kStepUnits));
      }
    }
  }
}

// Persistent blocks of some teams, which take tiles on their own; grid.y is the groups. kFinishes: something
// follows the convolution. A kernel of its own, since it costs the others registers.
template <typename Format, int kTiles, bool kFinishes>
__global__ void __launch_bounds__(most_teams(kTiles) * kTeamThreads, 1)
    kernel(const __grid_constant__ Arguments<typename Format::Element> problem) {
#if __CUDA_ARCH__ >= 900
  using Element = typename Format::Element;
  const int team = team_of_block();
  const int group = blockIdx.y;
  extern __shared__ __align__(128) unsigned char shared[];
  unsigned* const matrix = reinterpret_cast<unsigned*>(shared);
  int* const tops = reinterpret_cast<int*>(shared + problem.shared.tops);
  StagedItem* const items = reinterpret_cast<StagedItem*>(shared + problem.shared.items);
  WeightState& weight_state = *reinterpret_cast<WeightState*>(shared + problem.shared.weight_state);
  unsigned char* const own = shared + problem.shared.teams + team * problem.shared.team_bytes;
  unsigned* const cores = reinterpret_cast<unsigned*>(own);
  FilterScale* const scales = reinterpret_cast<FilterScale*>(own + problem.shared.scales);
  TeamState& state = *reinterpret_cast<TeamState*>(own + problem.shared.state);
  Element* const raw = reinterpret_cast<Element*>(own + problem.shared.raw);

  const int first_channel = group * problem.channels;
  const int first_filter = group * problem.filters;
  const int teams = blockDim.x / kTeamThreads;
  const int filter_folds = kTiles * kTileColumns >> problem.log2_outputs;
  const Element* const w = problem.w + static_cast<long long>(first_filter) * problem.channels *
                                           problem.filter_height * problem.filter_width;
  const Element* const bias = problem.b == nullptr ? nullptr : problem.b + first_filter;

  find_items(problem, items);
  for (int i = threadIdx.x; i < problem.filters; i += blockDim.x) tops[i] = kFirstTop;
  const auto clear_cores = [&] {
    for (int i = thread_of_team(); i < problem.cores_bytes / 4; i += kTeamThreads) cores[i] = 0u;
  };
  clear_cores();
  // Beside the copies too, since what lies there meets weights of zero.
  for (int i = thread_of_team(); i < problem.raw_bytes / 4; i += kTeamThreads) {
    reinterpret_cast<unsigned*>(raw)[i] = 0u;
  }
  show_to_copies_and_products();
  if (thread_of_team() == 0) {
    state.most = 0u, state.least_less_one = ~0u;
    make_copy_barrier(&state.copies);
  }
  if (threadIdx.x == 0) weight_state.windows = 1;
  __syncthreads();

  // Weights and pixels are converted by a guess of how large they are, and again in the rare case that it
  // does not hold.
  bool weights_are_finite = true;
  bool are_measured = false;
  int weight_windows = 1;
  int top = kFirstTop;
  const int first_index = blockIdx.x + gridDim.x * team;
  bool is_copied = start_copies<kFinishes>(problem, first_index, first_channel, raw, &state.copies);
  unsigned phase = 0;
  for (int weight_window = 0; weight_window < weight_windows; ++weight_window) {
    const ValueRange<Element> weight_range =
        stage_weights<Format, kTiles>(problem, w, tops, weight_window, matrix);
    const bool weights_fit = Format::kIsScaled ? weight_range.fits(kFirstTop) : weight_range.is_finite();
    show_to_copies_and_products();
    if (!__syncthreads_and(are_measured || weights_fit)) {
      measure_weights<Format>(problem, w, tops, &weight_state);
      __syncthreads();
      are_measured = true;
      weights_are_finite = weight_state.windows != ~0u;
      if (weights_are_finite) {
        weight_windows = static_cast<int>(weight_state.windows);
        --weight_window;
        continue;
      }
    }
    are_measured = true;

    int scaled_for = top + 1;  // what the scales were last found for
    bool is_far = false;
    for (int index = first_index; index < problem.tiles; index += gridDim.x * teams) {
      const Tile tile = Tile::of<kFinishes>(problem, index);
      if (is_copied) {
        wait_for_bulk_loads(&state.copies, phase);
        phase ^= 1;
      }
      const ValueRange<Element> range = stage_tile<Format, false>(
          problem, tile, first_channel, BinadeWindow(top), items, is_copied, raw, cores);
      show_to_copies_and_products();
      wait_until_bulk_stores_have_read();
      bool is_staged = true;
      int windows = 1;
      const bool fits = Format::kIsScaled ? range.fits(top) : range.is_finite();
      const bool all_fit =
          meet_team_and(team, fits && weights_are_finite && (!kFinishes || weight_windows == 1));
      const int next = index + gridDim.x * teams;
      is_copied = start_copies<kFinishes>(problem, next, first_channel, raw, &state.copies);
      if (!all_fit) {
        const ValueRange<Element> whole = reduce_team(range, team, &state);
        is_staged = false;
        windows = weights_are_finite && whole.is_finite() ? whole.windows() : 0;
        // What follows a convolution is computed of whole sums, which windows would give one after the other.
        if (kFinishes && (windows > 1 || weight_windows > 1)) windows = 0;
        if (windows == 0) {
          if (weight_window == 0) compute_as_defined<kFinishes>(problem, index, first_filter);
          // Rows that the next tile leaves as they are must not be infinite.
          clear_cores();
          meet_team(team);
          continue;
        }
        // Where one window is enough it gets some room for the tiles that follow.
        top = windows == 1 ? min(whole.top() + 2, whole.bottom() + kBinades - 1) : whole.top();
      }

      if (next < problem.tiles && !is_copied) {
        prefetch_tile(problem, Tile::of<kFinishes>(problem, next), first_channel);
      }
      for (int window = 0; window < windows; ++window) {
        const int window_top = top - window * kBinades;
        const bool is_first = weight_window + window == 0;
        if constexpr (Format::kIsScaled) {
          if (!is_staged) {
            meet_team(team);
            stage_tile<Format, true>(problem, tile, first_channel, BinadeWindow(window_top), items, false,
                                     raw, cores);
            show_to_copies_and_products();
            scaled_for = window_top + 1;
            meet_team(team);
          }
        }
        is_staged = false;
        if (scaled_for != window_top) {
          const bool is_near = find_scales<Format, kTiles>(problem, tops, weight_window, window_top,
                                                           is_first ? bias : nullptr, scales);
          scaled_for = window_top;
          is_far = !meet_team_and(team, is_near);
        }
        for (int block = 0; block < problem.filter_blocks; ++block) {
          if (block > 0) {
            wait_until_bulk_stores_have_read();
            meet_team(team);
          }
          const int first = block * problem.filters_per_block;
          const int filters = min(problem.filters_per_block, problem.filters - first);
          const Results<Element> results =
              Results<Element>::template of<kFinishes>(problem, tile, first_filter + first, filters, own);
          const SharedMatrix weights = SharedMatrix::at(matrix, kTiles * 8)
                                           .advanced(block * Format::kParts * problem.steps * kTiles * 16);
#pragma unroll 1
          for (int image = 0; image < tile.images; ++image) {
#pragma unroll 1
            for (int first_row = 0; first_row < problem.product_rows; first_row += kRows) {
              float sums[kTiles][4];
              begin_sums<Format, kTiles>(
                  problem, SharedMatrix::at(cores, 0).advanced(image * problem.image_cores + first_row),
                  weights, sums);
              const OwnScales<kTiles, kFinishes> own_scales(problem, scales + block * filter_folds);
              finish_warpgroup_products(sums);
              write_results<Format, kTiles, kFinishes>(problem, results, image, first_row,
                                                       scales + block * filter_folds, own_scales, is_far,
                                                       sums);
            }
          }
          if (kFinishes && problem.finish != Finish::nothing) {
            meet_team(team);
            finish(problem, index, first_filter + first, filters, own);
          }
          show_to_copies_and_products();
          meet_team(team);
          if (kFinishes || (windows == 1 && weight_windows == 1)) {
            store_in_bulk(problem, results);
          } else {
            store_by_threads(problem, index, first_filter + first, filters, own, !is_first);
          }
        }
      }
    }
    if (weight_window + 1 < weight_windows) {
      __syncthreads();
      is_copied = start_copies<kFinishes>(problem, first_index, first_channel, raw, &state.copies);
    }
  }
  wait_until_bulk_stores_have_read();
#endif
}

}  // namespace convswap::toeplitz
