#pragma once

// The kernel of the algorithm `toeplitz`; toeplitz.cc tells the idea, plan.cc fills the arguments.

#include "cuda/definition.cuh"
#include "cuda/primitives/dependent_launch.cuh"
#include "cuda/primitives/ring.cuh"
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
  for (int i = thread_of_warpgroup(); i < count; i += kWarpgroupThreads) {
    const int q = tile.first_column + i % tile.y_columns;
    const int p = tile.y_row + i / tile.y_columns % tile.y_rows;
    const int k = first_filter + i / (tile.y_columns * tile.y_rows) % problem.filters;
    const long long n = tile.n + i / (tile.y_columns * tile.y_rows) / problem.filters;
    const long long plane = (n * problem.out_channels + k) * problem.y_plane;
    const int first = tile.y_row * problem.y_width + tile.first_column;
    const int element = i % (tile.y_columns * tile.y_rows);
    const OwnElements<kFinishes, Element> stored(problem, tile, tile.y_columns * tile.y_rows,
                                                 plane + first + problem.y_misalignment);
    if (element < stored.first || element >= stored.end) continue;
    problem.y[plane + p * problem.y_width + q] =
        static_cast<Element>(defined_result<Element, float>(problem, problem.definition, n, k, 0, p, q));
  }
}

// Nothing may stay infinite that is left as it is when others are staged: it meets weights of zero.
template <typename Element>
__device__ inline void clear_cores(const Arguments<Element>& problem, unsigned* cores) {
  for (int i = thread_of_warpgroup(); i < problem.cores_bytes / 4; i += kWarpgroupThreads) cores[i] = 0u;
}

// The Toeplitz matrix of a filter block.
template <typename Format, int kTiles, typename Element = typename Format::Element>
__device__ inline SharedMatrix block_matrix(const Arguments<Element>& problem, unsigned char* shared,
                                            int block) {
  return SharedMatrix::at(problem.shared.matrix().in(shared), kTiles * 8)
      .advanced(block * Format::kParts * problem.steps * kTiles * 16);
}

// Begins sums = kRows rows of the input, from `cores` on, times the matrix of one filter block; what is left
// is to wait for them (await_warpgroup_products).
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
  const auto correct = [&] { scale_warpgroup_sums(sums, Format::kCorrectionScale); };
  for_each_term<Format, Format::kTerms>(correct, [&](int term) {
    const SharedMatrix a = cores.advanced(Format::pixel_part(term) * problem.part_cores);
    const SharedMatrix b = matrix.advanced(Format::weight_part(term) * problem.steps * kStepUnits);
    const auto add = [&](int step) {
      add_warpgroup_product<typename Format::Number, kTiles>(sums, a.advanced(problem.step_places[step]),
                                                             b.advanced(step * kStepUnits));
    };
    // What is left over of two at a time comes first: after a loop with a rest the compiler waits for every
    // product.
    if (problem.steps % 2 != 0) add(0);
#pragma unroll 1
    for (int step = problem.steps % 2; step < problem.steps; step += 2) {
      add(step);
      add(step + 1);
    }
  });
  end_warpgroup_products();
}

// Computes a tile that is followed by something and does not go the usual way. Where its input spans several
// windows, the sums of all are added up in registers: for each 64 rows of the product, what they take is
// staged again, for every window that has some of it. With no windows it is computed as defined. All of that
// is rare, and one call, since each call costs the kernel registers; so does what is passed, and what can be
// found again is not.
template <typename Format, int kTiles, typename Element = typename Format::Element>
__device__ __noinline__ void compute_apart(const Arguments<Element>& problem, int index, int top,
                                           int windows) {
  extern __shared__ __align__(128) unsigned char shared[];
  const int warpgroup = warpgroup_of_block(), group = blockIdx.y;
  unsigned char* const own =
      problem.shared.warpgroups.in(shared) + warpgroup * problem.shared.warpgroup_bytes;
  const Tile tile = Tile::of<true>(problem, index);
  const int* const tops = problem.shared.tops.in(shared);
  const StagedItem* const items = problem.shared.items.in(shared);
  unsigned* const cores = problem.shared.cores().in(own);
  FilterScale* const scales = problem.shared.scales.in(own);
  WarpgroupState& state = *problem.shared.state.in(own);
  const int first_filter = group * problem.filters;
  if (windows == 0) compute_as_defined<true>(problem, index, first_filter);
  clear_cores(problem, cores);
  if (windows == 0) return sync_warpgroup(warpgroup);
  const Element* const bias = problem.b == nullptr ? nullptr : problem.b + first_filter;
  const Element *const no_bias = nullptr, *const not_copied = nullptr;
  const int chunks = (problem.product_rows + kRows - 1) / kRows;
  for (int block = 0; block < problem.filter_blocks; ++block) {
    if (block > 0) wait_until_bulk_stores_have_read();
    const int first = block * problem.filters_per_block;
    const int filters = min(problem.filters_per_block, problem.filters - first);
    const Results<Element> results =
        Results<Element>::template of<true>(problem, tile, first_filter + first, filters, own);
    const SharedMatrix matrix = block_matrix<Format, kTiles>(problem, shared, block);
    const FilterScale* const block_scales = scales + block * (kTiles * kTileColumns >> problem.log2_outputs);
#pragma unroll 1
    for (int i = 0; i < tile.images * chunks; ++i) {
      const int image = i / chunks, first_row = i % chunks * kRows;
      const int last_row = min(first_row + kRows, problem.product_rows) - 1;
      const int phases = problem.row_phases.divisor;
      const StagedPart part = {image, image + 1, static_cast<int>(problem.pitch.quotient(first_row)) * phases,
                               min(problem.input_rows, (static_cast<int>(problem.pitch.quotient(last_row)) +
                                                        (problem.window_rows - 1) / phases + 1) *
                                                           phases)};
      float whole[kTiles][4] = {};
      // Most rows need the first window alone.
      ValueRange<Element> seen;
      int window_top = top;
      do {
        sync_warpgroup(warpgroup);
        seen = stage_tile<Format, true>(problem, tile, group * problem.channels, BinadeWindow(window_top),
                                        items, false, not_copied, part, cores);
        find_scales<Format, kTiles>(problem, tops, 0, window_top, no_bias, true, scales);
        show_to_copies_and_products();
        seen = reduce_warpgroup(seen, warpgroup, &state);
        float sums[kTiles][4];
        begin_sums<Format, kTiles>(
            problem, SharedMatrix::at(cores, 0).advanced(image * problem.image_cores + first_row), matrix,
            sums);
        await_warpgroup_products(sums);
#pragma unroll
        for (int t = 0; t < kTiles; ++t) {
          const ColumnScales scale(problem, results, block_scales, t * kTileColumns + 2 * (threadIdx.x % 4),
                                   0);
          whole[t][0] += sums[t][0] * scale.first.rest * scale.first.factor;
          whole[t][1] += sums[t][1] * scale.second.rest * scale.second.factor;
          whole[t][2] += sums[t][2] * scale.first.rest * scale.first.factor;
          whole[t][3] += sums[t][3] * scale.second.rest * scale.second.factor;
        }
        window_top -= kBinades;
      } while (seen.most != 0 && window_top >= seen.bottom());
      sync_warpgroup(warpgroup);
      find_scales<Format, kTiles>(problem, tops, 0, top, bias, false, scales);
      sync_warpgroup(warpgroup);
      write_results<Format, true>(
          problem, results,
          Prepared<kTiles, true>(problem, results, Writing::any, image, first_row, block_scales), false,
          whole);
    }
    sync_warpgroup(warpgroup);
    if (problem.finish != Finish::nothing) {
      finish(problem, index, first_filter + first, filters, own);
    }
    show_to_copies_and_products();
    sync_warpgroup(warpgroup);
    store_in_bulk<true>(problem, results);
  }
}

// The tile for the place of a warpgroup in the order of blocks, then warpgroups, then turns. Without anything
// that follows, neighbours in y go to warpgroups of a block, whose stores then meet in time and place; but in
// the last turn, which is not full, to other blocks first.
template <bool kFinishes, typename Element>
__device__ inline int tile_at(const Arguments<Element>& problem, int place) {
  if (kFinishes) return place;
  const int warpgroups = blockDim.x / kWarpgroupThreads, warpgroup = warpgroup_of_block();
  const int of_turn = blockIdx.x + gridDim.x * warpgroup;
  const bool is_full = place - of_turn + static_cast<int>(gridDim.x) * warpgroups <= problem.tiles;
  return is_full ? place - of_turn + static_cast<int>(blockIdx.x) * warpgroups + warpgroup : place;
}

// Persistent blocks of some warpgroups, which take tiles on their own; grid.y is the groups. kFinishes:
// something follows the convolution. A kernel of its own, since it costs the others registers.
template <typename Format, int kTiles, bool kFinishes>
__global__ void __launch_bounds__(most_warpgroups(kTiles) * kWarpgroupThreads, 1)
    kernel(const __grid_constant__ Arguments<typename Format::Element> problem) {
#if defined(__CUDA_ARCH__) && !defined(__CUDA_ARCH_FEAT_SM90_ALL)
#error "toeplitz has code for compute capability 9.0 alone: compile it for sm_90a"
#else
  using Element = typename Format::Element;
  wait_for_kernels_before();
  const int warpgroup = warpgroup_of_block();
  const int group = blockIdx.y;
  extern __shared__ __align__(128) unsigned char shared[];
  unsigned* const matrix = problem.shared.matrix().in(shared);
  int* const tops = problem.shared.tops.in(shared);
  StagedItem* const items = problem.shared.items.in(shared);
  WeightState& weight_state = *problem.shared.weight_state.in(shared);
  unsigned char* const own =
      problem.shared.warpgroups.in(shared) + warpgroup * problem.shared.warpgroup_bytes;
  unsigned* const cores = problem.shared.cores().in(own);
  FilterScale* const scales = problem.shared.scales.in(own);
  WarpgroupState& state = *problem.shared.state.in(own);
  Element* const raw = reinterpret_cast<Element*>(problem.shared.raw.in(own));

  const int first_channel = group * problem.channels;
  const int first_filter = group * problem.filters;
  const int warpgroups = blockDim.x / kWarpgroupThreads;
  const int filter_folds = kTiles * kTileColumns >> problem.log2_outputs;
  const Element* const w = problem.w + static_cast<long long>(first_filter) * problem.channels *
                                           problem.filter_height * problem.filter_width;
  const Element* const bias = problem.b == nullptr ? nullptr : problem.b + first_filter;

  find_items(problem, items);
  for (int i = threadIdx.x; i < problem.filters; i += blockDim.x) tops[i] = kFirstTop;
  clear_cores(problem, cores);
  // Beside the copies too, since what lies there meets weights of zero.
  for (int i = thread_of_warpgroup(); i < problem.raw_bytes / 4; i += kWarpgroupThreads) {
    reinterpret_cast<unsigned*>(raw)[i] = 0u;
  }
  show_to_copies_and_products();
  if (thread_of_warpgroup() == 0) {
    state.most = 0u, state.least_less_one = ~0u;
    make_transaction_barrier(&state.copies);
  }
  if (threadIdx.x == 0) weight_state.windows = 1;
  __syncthreads();

  // Weights and pixels are converted by a guess of how large they are, and again in the rare case that it
  // does not hold.
  bool can_multiply = true;  // with these weights
  bool are_measured = false;
  int weight_windows = 1;
  int top = kFirstTop;
  const int first_place = blockIdx.x + gridDim.x * warpgroup;
  bool is_copied = start_copies<kFinishes>(problem, tile_at<kFinishes>(problem, first_place), first_channel,
                                           raw, &state.copies);
  Ring<1> copies;
  for (int weight_window = 0; weight_window < weight_windows; ++weight_window) {
    const ValueRange<Element> weight_range =
        stage_weights<Format, kTiles>(problem, w, tops, weight_window, matrix);
    show_to_copies_and_products();
    if (!__syncthreads_and(are_measured || fits<Format>(weight_range, kFirstTop))) {
      const int size = problem.channels * problem.filter_height * problem.filter_width;
      measure_filters<Format>([&](int filter) { return w + static_cast<long long>(filter) * size; },
                              problem.filters, size, tops, &weight_state.windows);
      __syncthreads();
      are_measured = true;
      // What follows takes whole sums, which windows of weights would give one after the other.
      can_multiply = weight_state.windows == 1 || (!kFinishes && weight_state.windows != ~0u);
      if (can_multiply) {
        weight_windows = static_cast<int>(weight_state.windows);
        --weight_window;
        continue;
      }
    }
    are_measured = true;

    int scaled_for = top + 1;  // what the scales were last found for
    bool is_far = false;
    for (int place = first_place; place < problem.tiles; place += gridDim.x * warpgroups) {
      const int index = tile_at<kFinishes>(problem, place);
      const Tile tile = Tile::of<kFinishes>(problem, index);
      if (is_copied) {
        wait(&state.copies, copies.phase());
        copies.advance();
      }
      const ValueRange<Element> range = stage_tile<Format, false>(
          problem, tile, first_channel, BinadeWindow(top), items, is_copied, raw, {}, cores);
      show_to_copies_and_products();
      wait_until_bulk_stores_have_read();
      bool is_staged = true;
      int windows = 1;
      const bool all_fit = sync_warpgroup_and(warpgroup, fits<Format>(range, top) && can_multiply);
      const int next = tile_at<kFinishes>(problem, place + gridDim.x * warpgroups);
      is_copied = start_copies<kFinishes>(problem, next, first_channel, raw, &state.copies);
      if (!all_fit) {
        const ValueRange<Element> whole = reduce_warpgroup(range, warpgroup, &state);
        is_staged = false;
        windows = can_multiply && whole.is_finite() ? whole.windows() : 0;
        if (windows > 0) top = whole.window_top();
        if constexpr (kFinishes && Format::kIsScaled) {
          if (windows != 1) {
            compute_apart<Format, kTiles>(problem, index, top, windows);
            scaled_for = top + 1;
            continue;
          }
        }
        if (windows == 0) {
          if (weight_window == 0) compute_as_defined<kFinishes>(problem, index, first_filter);
          clear_cores(problem, cores);
          sync_warpgroup(warpgroup);
          continue;
        }
      }

      if (next < problem.tiles && !is_copied) {
        prefetch_tile(problem, Tile::of<kFinishes>(problem, next), first_channel);
      }
      for (int window = 0; window < windows; ++window) {
        const int window_top = top - window * kBinades;
        const bool is_first = weight_window + window == 0;
        if constexpr (Format::kIsScaled) {
          if (!is_staged) {
            sync_warpgroup(warpgroup);
            stage_tile<Format, true>(problem, tile, first_channel, BinadeWindow(window_top), items, false,
                                     raw, {0, tile.images, 0, problem.input_rows}, cores);
            show_to_copies_and_products();
            scaled_for = window_top + 1;
            sync_warpgroup(warpgroup);
          }
        }
        is_staged = false;
        if (scaled_for != window_top) {
          const bool is_near = find_scales<Format, kTiles>(problem, tops, weight_window, window_top,
                                                           is_first ? bias : nullptr, true, scales);
          scaled_for = window_top;
          is_far = !sync_warpgroup_and(warpgroup, is_near);
        }
        for (int block = 0; block < problem.filter_blocks; ++block) {
          if (block > 0) {
            wait_until_bulk_stores_have_read();
            sync_warpgroup(warpgroup);
          }
          const int first = block * problem.filters_per_block;
          const int filters = min(problem.filters_per_block, problem.filters - first);
          const Results<Element> results =
              Results<Element>::template of<kFinishes>(problem, tile, first_filter + first, filters, own);
          const SharedMatrix weights = block_matrix<Format, kTiles>(problem, shared, block);
          const Writing writing = writing_of<kTiles>(problem, results);
#pragma unroll 1
          for (int image = 0; image < tile.images; ++image) {
#pragma unroll 1
            for (int first_row = 0; first_row < problem.product_rows; first_row += kRows) {
              float sums[kTiles][4];
              begin_sums<Format, kTiles>(
                  problem, SharedMatrix::at(cores, 0).advanced(image * problem.image_cores + first_row),
                  weights, sums);
              const Prepared<kTiles, kFinishes> prepared(problem, results, writing, image, first_row,
                                                         scales + block * filter_folds);
              await_warpgroup_products(sums);
              write_results<Format, false>(problem, results, prepared, is_far, sums);
            }
          }
          if (kFinishes && problem.finish != Finish::nothing) {
            sync_warpgroup(warpgroup);
            finish(problem, index, first_filter + first, filters, own);
          }
          show_to_copies_and_products();
          sync_warpgroup(warpgroup);
          if (kFinishes || (windows == 1 && weight_windows == 1)) {
            store_in_bulk<kFinishes>(problem, results);
          } else {
            store_by_threads(problem, index, first_filter + first, filters, own, !is_first);
          }
        }
      }
    }
    if (weight_window + 1 < weight_windows) {
      __syncthreads();
      is_copied = start_copies<kFinishes>(problem, tile_at<kFinishes>(problem, first_place), first_channel,
                                          raw, &state.copies);
    }
  }
  wait_until_bulk_stores_have_read();
#endif
}

}  // namespace convswap::toeplitz
