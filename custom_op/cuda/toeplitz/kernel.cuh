#pragma once

// The kernel of the algorithm `toeplitz`. toeplitz.cc explains the method and fills the arguments.

#include "cuda/primitives/dependent_launch.cuh"
#include "cuda/primitives/naive_conv.cuh"
#include "cuda/primitives/pipeline_state.cuh"
#include "cuda/primitives/wgmma.cuh"
#include "cuda/toeplitz/epilogue.cuh"
#include "cuda/toeplitz/input.cuh"
#include "cuda/toeplitz/results.cuh"
#include "cuda/toeplitz/weights.cuh"

namespace convswap::toeplitz {

// Computes an output tile with the naive loop. This is for data with infinities or NaN, which the tensor core
// would multiply by the matrix's zeros, giving NaN. With an epilogue it is also for weights that take several
// windows.
template <bool kHasEpilogue, typename Element>
__device__ __noinline__ void compute_naive(const Arguments<Element>& problem, int index, int first_filter) {
  const Tile tile = Tile::of<kHasEpilogue>(problem, index);
  const int count = tile.images * problem.filters * tile.y_rows * tile.y_columns;
  for (int i = warpgroup_thread(); i < count; i += kWarpgroupThreads) {
    const int q = tile.first_column + i % tile.y_columns;
    const int p = tile.y_row + i / tile.y_columns % tile.y_rows;
    const int k = first_filter + i / (tile.y_columns * tile.y_rows) % problem.filters;
    const long long n = tile.n + i / (tile.y_columns * tile.y_rows) / problem.filters;
    const long long plane = (n * problem.out_channels + k) * problem.y_plane;
    const int first = tile.y_row * problem.y_width + tile.first_column;
    const int element = i % (tile.y_columns * tile.y_rows);
    const StoredRange<kHasEpilogue, Element> stored(problem, tile, tile.y_columns * tile.y_rows,
                                                    plane + first + problem.y_misalignment);
    if (element < stored.first || element >= stored.end) continue;
    problem.y[plane + p * problem.y_width + q] =
        static_cast<Element>(naive_conv_output<Element, float>(problem, problem.naive_conv, n, k, 0, p, q));
  }
}

// Zeroes the staged input. wgmmas also read vectors that a tile does not stage. For results that are stored,
// their weights are zero, but a stale infinity or NaN times zero is NaN.
template <typename Element>
__device__ inline void clear_staged_input(const Arguments<Element>& problem, unsigned* staged_input) {
  for (int i = warpgroup_thread(); i < problem.staged_input_bytes / 4; i += kWarpgroupThreads)
    staged_input[i] = 0u;
}

// Descriptor of the Toeplitz matrix of a filter pass.
template <typename Format, int kAccumulatorTiles, typename Element = typename Format::Element>
__device__ inline SmemDescriptor pass_matrix(const Arguments<Element>& problem, unsigned char* shared,
                                             int filter_pass) {
  return SmemDescriptor::at(problem.shared.matrix().in(shared), kAccumulatorTiles * 8)
      .advanced(filter_pass * Format::kParts * problem.steps * kAccumulatorTiles * 16);
}

// Issues and commits the wgmmas of an M tile: kWgmmaM rows of the product, whose first vectors start at
// `pixels`, with the matrix of one filter pass. The caller waits with wgmma_wait_all.
template <typename Format, int kAccumulatorTiles, typename Element = typename Format::Element>
__device__ inline void issue_wgmmas(const Arguments<Element>& problem, SmemDescriptor pixels,
                                    SmemDescriptor matrix, float (&accumulators)[kAccumulatorTiles][4]) {
  constexpr unsigned kStepUnits = kAccumulatorTiles * 16;  // in units of 16 bytes
#pragma unroll
  for (int t = 0; t < kAccumulatorTiles; ++t) {
#pragma unroll
    for (int j = 0; j < 4; ++j) accumulators[t][j] = 0.0f;
  }
  wgmma_fence(accumulators);
  pixels = pixels.warp_uniform(), matrix = matrix.warp_uniform();
  const auto correct = [&] { scale_accumulators(accumulators, Format::kCorrectionScale); };
  for_each_term<Format, Format::kTerms>(correct, [&](int term) {
    const SmemDescriptor a = pixels.advanced(Format::pixel_part(term) * problem.part_vectors);
    const SmemDescriptor b = matrix.advanced(Format::weight_part(term) * problem.steps * kStepUnits);
    const auto add = [&](int step) {
      wgmma<typename Format::Number, kAccumulatorTiles>(accumulators, a.advanced(problem.step_offsets[step]),
                                                        b.advanced(step * kStepUnits));
    };
    // The step that makes the count odd comes first: a remainder after the loop would make the compiler wait
    // for every wgmma.
    if (problem.steps % 2 != 0) add(0);
#pragma unroll 1
    for (int step = problem.steps % 2; step < problem.steps; step += 2) {
      add(step);
      add(step + 1);
    }
  });
  wgmma_commit_group();
}

// Computes a tile, with an epilogue, whose input spans several windows of binades. The accumulators of the
// windows are added up in registers: for each M tile and filter pass, the input is staged again for every
// window from the highest down to that of its smallest value. If `windows` is 0, wgmma cannot compute the
// tile, and the naive loop does.
//
// This is rare and lies behind one call, since each call costs the kernel registers. Arguments cost registers
// too, so the function computes again what it can.
template <typename Format, int kAccumulatorTiles, typename Element = typename Format::Element>
__device__ __noinline__ void compute_multi_window_tile(const Arguments<Element>& problem, int index, int top,
                                                       int windows) {
  extern __shared__ __align__(128) unsigned char shared[];
  const int warpgroup = warpgroup_index(), conv_group = blockIdx.y;
  unsigned char* const warpgroup_shared =
      problem.shared.warpgroups.in(shared) + warpgroup * problem.shared.warpgroup_bytes;
  const Tile tile = Tile::of<true>(problem, index);
  const int* const tops = problem.shared.tops.in(shared);
  const StagedItem* const items = problem.shared.items.in(shared);
  unsigned* const staged_input = problem.shared.staged_input().in(warpgroup_shared);
  FilterScale* const scales = problem.shared.scales.in(warpgroup_shared);
  WarpgroupState& state = *problem.shared.state.in(warpgroup_shared);
  const int first_filter = conv_group * problem.filters;
  if (windows == 0) compute_naive<true>(problem, index, first_filter);
  clear_staged_input(problem, staged_input);
  if (windows == 0) return sync_warpgroup(warpgroup);
  const Element* const bias = problem.b == nullptr ? nullptr : problem.b + first_filter;
  const Element *const no_bias = nullptr, *const no_raw_input = nullptr;
  const int m_tiles = (problem.product_rows + kWgmmaM - 1) / kWgmmaM;
  for (int filter_pass = 0; filter_pass < problem.filter_passes; ++filter_pass) {
    if (filter_pass > 0) tma_store_wait_group_read();
    const int first = filter_pass * problem.filters_per_pass;
    const int filters = min(problem.filters_per_pass, problem.filters - first);
    const Results<Element> results =
        Results<Element>::template of<true>(problem, tile, first_filter + first, filters, warpgroup_shared);
    const SmemDescriptor matrix = pass_matrix<Format, kAccumulatorTiles>(problem, shared, filter_pass);
    const FilterScale* const pass_scales =
        scales + filter_pass * (kAccumulatorTiles * kAccumulatorTileColumns >> problem.log2_outputs);
#pragma unroll 1
    for (int i = 0; i < tile.images * m_tiles; ++i) {
      const int image = i / m_tiles, first_row = i % m_tiles * kWgmmaM;
      const int last_row = min(first_row + kWgmmaM, problem.product_rows) - 1;
      const int stride_phases = problem.row_stride_phases.divisor;
      const StagedRange staged_range = {
          image, image + 1, static_cast<int>(problem.pitch.quotient(first_row)) * stride_phases,
          min(problem.input_rows, (static_cast<int>(problem.pitch.quotient(last_row)) +
                                   (problem.window_rows - 1) / stride_phases + 1) *
                                      stride_phases)};
      float totals[kAccumulatorTiles][4] = {};
      // Most rows need only the first window.
      ValueRange<Element> range;
      int window_top = top;
      do {
        sync_warpgroup(warpgroup);
        range =
            stage_tile<Format, true>(problem, tile, conv_group * problem.channels, BinadeWindow(window_top),
                                     items, false, no_raw_input, staged_range, staged_input);
        find_scales<Format, kAccumulatorTiles>(problem, tops, 0, window_top, no_bias, true, scales);
        fence_proxy_async();
        range = reduce_warpgroup(range, warpgroup, &state);
        float accumulators[kAccumulatorTiles][4];
        issue_wgmmas<Format, kAccumulatorTiles>(
            problem, SmemDescriptor::at(staged_input, 0).advanced(image * problem.image_vectors + first_row),
            matrix, accumulators);
        wgmma_wait_all(accumulators);
#pragma unroll
        for (int t = 0; t < kAccumulatorTiles; ++t) {
          const ColumnPairScales scale(problem, results, pass_scales,
                                       t * kAccumulatorTileColumns + 2 * (threadIdx.x % 4), 0);
          totals[t][0] += accumulators[t][0] * scale.first.second_factor * scale.first.factor;
          totals[t][1] += accumulators[t][1] * scale.second.second_factor * scale.second.factor;
          totals[t][2] += accumulators[t][2] * scale.first.second_factor * scale.first.factor;
          totals[t][3] += accumulators[t][3] * scale.second.second_factor * scale.second.factor;
        }
        window_top -= kBinades;
      } while (range.max_bits != 0 && window_top >= range.bottom());
      sync_warpgroup(warpgroup);
      find_scales<Format, kAccumulatorTiles>(problem, tops, 0, top, bias, false, scales);
      sync_warpgroup(warpgroup);
      write_results<Format, true>(problem, results,
                                  StoreContext<kAccumulatorTiles, true>(problem, results, StoreMode::any,
                                                                        image, first_row, pass_scales),
                                  false, totals);
    }
    sync_warpgroup(warpgroup);
    if (problem.post_pass != PostPass::none) {
      run_post_pass(problem, index, first_filter + first, filters, warpgroup_shared);
    }
    fence_proxy_async();
    sync_warpgroup(warpgroup);
    store_by_tma<true>(problem, results);
  }
}

// Tile index of a slot. A slot is one turn of a warpgroup: slot = block + grid x (warpgroup + warpgroups x
// turn). Without an epilogue, tiles that are neighbours in y go to the warpgroups of one block, so that they
// store neighbouring addresses at about the same time. If the last turn is not full, its tiles spread over
// the blocks first.
template <bool kHasEpilogue, typename Element>
__device__ inline int tile_at(const Arguments<Element>& problem, int slot) {
  if (kHasEpilogue) return slot;
  const int warpgroups = blockDim.x / kWarpgroupThreads, warpgroup = warpgroup_index();
  const int slot_in_turn = blockIdx.x + gridDim.x * warpgroup;
  const bool is_full = slot - slot_in_turn + static_cast<int>(gridDim.x) * warpgroups <= problem.output_tiles;
  return is_full ? slot - slot_in_turn + static_cast<int>(blockIdx.x) * warpgroups + warpgroup : slot;
}

// One warpgroup of the kernel. Each warpgroup computes its own tiles; all warpgroups of a block stage the
// weights together. Weights and pixels are converted with a guessed scale, and converted again in the rare
// case that they do not fit.
template <typename Format, int kAccumulatorTiles, bool kHasEpilogue>
class Warpgroup {
  using Element = typename Format::Element;

 public:
  __device__ Warpgroup(const Arguments<Element>& problem, unsigned char* shared)
      : problem_(problem),
        warpgroup_index_(warpgroup_index()),
        first_channel_(blockIdx.y * problem.channels),
        first_filter_(blockIdx.y * problem.filters),
        shared_(shared),
        warpgroup_shared_(problem.shared.warpgroups.in(shared) +
                          warpgroup_index_ * problem.shared.warpgroup_bytes),
        items_(problem.shared.items.in(shared)),
        raw_(reinterpret_cast<Element*>(problem.shared.raw.in(warpgroup_shared_))) {}

  // Prepares the state that all tiles share.
  __device__ void set_up() {
    set_staged_items(problem_, items_);
    for (int i = threadIdx.x; i < problem_.filters; i += blockDim.x) tops()[i] = kFirstTop;
    clear_staged_input(problem_, staged_input());
    // The raw input is zeroed too: vectors at the edge take in memory around it. Their weights are zero
    // there, but a stale infinity or NaN times zero is NaN.
    for (int i = warpgroup_thread(); i < problem_.raw_bytes / 4; i += kWarpgroupThreads) {
      reinterpret_cast<unsigned*>(raw_)[i] = 0u;
    }
    fence_proxy_async();
    if (warpgroup_thread() == 0) {
      state().max_bits = 0u, state().min_bits_less_one = ~0u;
      tma_mbarrier_init(&state().input_barrier);
    }
    if (threadIdx.x == 0) weight_state().windows = 1;
    __syncthreads();
  }

  // Computes the warpgroup's tiles, once for each window of the weights.
  __device__ void compute_tiles() {
    const int slots = gridDim.x * (blockDim.x / kWarpgroupThreads);
    const int first_slot = blockIdx.x + gridDim.x * warpgroup_index_;
    start_input_load(tile_at<kHasEpilogue>(problem_, first_slot));
    for (int window = 0; window < weight_windows_; ++window) {
      stage_window_of_weights(window);
      invalidate_scales(top_);
      for (int slot = first_slot; slot < problem_.output_tiles; slot += slots) {
        compute(slot, slot + slots, window);
      }
      if (window + 1 < weight_windows_) {
        __syncthreads();
        start_input_load(tile_at<kHasEpilogue>(problem_, first_slot));
      }
    }
    tma_store_wait_group_read();
  }

 private:
  // Regions of shared memory: of the block, and of the warpgroup. items_ and raw_ are members: computed at
  // each use, they made the float16 kernel of 48 columns spill a register.
  __device__ unsigned* matrix() const { return problem_.shared.matrix().in(shared_); }
  __device__ int* tops() const { return problem_.shared.tops.in(shared_); }
  __device__ WeightState& weight_state() const { return *problem_.shared.weight_state.in(shared_); }
  __device__ unsigned* staged_input() const { return problem_.shared.staged_input().in(warpgroup_shared_); }
  __device__ FilterScale* scales() const { return problem_.shared.scales.in(warpgroup_shared_); }
  __device__ WarpgroupState& state() const { return *problem_.shared.state.in(warpgroup_shared_); }

  // Stages a window of the weights, together with all warpgroups of the block. If the weights do not fit the
  // guessed scale, measures their range, which gives the number of windows, and stages them again.
  __device__ void stage_window_of_weights(int window) {
    const Element* const w = problem_.w + static_cast<long long>(first_filter_) * problem_.channels *
                                              problem_.filter_height * problem_.filter_width;
    bool are_measured = window > 0;
    do {
      const ValueRange<Element> range =
          stage_weights<Format, kAccumulatorTiles>(problem_, w, tops(), window, matrix());
      fence_proxy_async();
      if (__syncthreads_and(are_measured || fits<Format>(range, kFirstTop))) return;
      measure_weights(w);
      are_measured = true;
    } while (can_multiply_);
  }

  __device__ void measure_weights(const Element* w) {
    const int size = problem_.channels * problem_.filter_height * problem_.filter_width;
    measure_filters<Format>([&](int filter) { return w + static_cast<long long>(filter) * size; },
                            problem_.filters, size, tops(), &weight_state().windows);
    __syncthreads();
    // The epilogue needs complete sums, but windows of weights give partial ones, one after the other.
    const unsigned windows = weight_state().windows;
    can_multiply_ = windows == 1 || (!kHasEpilogue && windows != ~0u);
    if (can_multiply_) weight_windows_ = static_cast<int>(windows);
  }

  // Starts the TMA loads of a tile's input if the tile exists and TMA can load it.
  __device__ void start_input_load(int index) {
    has_pending_tma_input_ =
        start_tma_loads<kHasEpilogue>(problem_, index, first_channel_, raw_, &state().input_barrier);
  }

  // Computes the tile of a slot with a window of the weights, and loads or prefetches the input of the next
  // tile meanwhile.
  __device__ void compute(int slot, int next_slot, int weight_window) {
    const int index = tile_at<kHasEpilogue>(problem_, slot);
    const Tile tile = Tile::of<kHasEpilogue>(problem_, index);
    const ValueRange<Element> range = convert(tile);
    const bool all_fit = sync_warpgroup_all(warpgroup_index_, fits<Format>(range, top_) && can_multiply_);
    const int next = tile_at<kHasEpilogue>(problem_, next_slot);
    start_input_load(next);
    const int windows = all_fit ? 1 : find_windows(range);
    if constexpr (kHasEpilogue && Format::kIsScaled) {
      if (windows != 1) {
        compute_multi_window_tile<Format, kAccumulatorTiles>(problem_, index, top_, windows);
        invalidate_scales(top_);
        return;
      }
    }
    if (windows == 0) {
      if (weight_window == 0) compute_naive<kHasEpilogue>(problem_, index, first_filter_);
      clear_staged_input(problem_, staged_input());
      sync_warpgroup(warpgroup_index_);
      return;
    }
    if (next < problem_.output_tiles && !has_pending_tma_input_) {
      prefetch_tile(problem_, Tile::of<kHasEpilogue>(problem_, next), first_channel_);
    }
    for (int window = 0; window < windows; ++window) {
      const int window_top = top_ - window * kBinades;
      const bool is_first_window = weight_window + window == 0;
      if constexpr (Format::kIsScaled) {
        if (!all_fit) convert_window(tile, window_top);
      }
      if (scaled_for_ != window_top) scale_for(window_top, weight_window, is_first_window);
      for (int filter_pass = 0; filter_pass < problem_.filter_passes; ++filter_pass) {
        compute_filter_pass(tile, index, filter_pass, is_first_window, windows == 1 && weight_windows_ == 1);
      }
    }
  }

  // Converts a tile's input with the current scale and returns the value range that the thread has read.
  __device__ ValueRange<Element> convert(const Tile& tile) {
    if (has_pending_tma_input_) {
      mbarrier_wait(&state().input_barrier, input_pipeline_.phase());
      input_pipeline_.advance();
    }
    const ValueRange<Element> range =
        stage_tile<Format, false>(problem_, tile, first_channel_, BinadeWindow(top_), items_,
                                  has_pending_tma_input_, raw_, {}, staged_input());
    fence_proxy_async();
    tma_store_wait_group_read();
    return range;
  }

  // Sets top_ to the first window of a tile that did not fit, from the ranges of all threads. Returns the
  // number of windows, or 0 if the tensor core cannot multiply the tile.
  __device__ int find_windows(ValueRange<Element> range) {
    const ValueRange<Element> tile_range = reduce_warpgroup(range, warpgroup_index_, &state());
    if (!can_multiply_ || !tile_range.is_finite()) return 0;
    top_ = tile_range.window_top();
    return tile_range.windows();
  }

  // Converts the values of a tile's input that lie in a window; all others become zero.
  __device__ void convert_window(const Tile& tile, int window_top) {
    sync_warpgroup(warpgroup_index_);
    stage_tile<Format, true>(problem_, tile, first_channel_, BinadeWindow(window_top), items_, false, raw_,
                             {0, tile.images, 0, problem_.input_rows}, staged_input());
    fence_proxy_async();
    invalidate_scales(window_top);
    sync_warpgroup(warpgroup_index_);
  }

  // Makes `compute` set the scales for the window with the highest binade `top`, and for those below it.
  __device__ void invalidate_scales(int top) { scaled_for_ = top + 1; }

  // Sets the scales that undo those of a window of the pixels and a window of the weights.
  __device__ void scale_for(int window_top, int weight_window, bool is_first_window) {
    const Element* const bias =
        problem_.b == nullptr || !is_first_window ? nullptr : problem_.b + first_filter_;
    const bool fits_one_factor = find_scales<Format, kAccumulatorTiles>(problem_, tops(), weight_window,
                                                                        window_top, bias, true, scales());
    scaled_for_ = window_top;
    needs_second_factor_ = !sync_warpgroup_all(warpgroup_index_, fits_one_factor);
  }

  // Computes a filter pass's results of the converted window, and stores them or adds them to those in y.
  // `is_first_window` and `is_only_window` count the windows of pixels and weights together.
  __device__ void compute_filter_pass(const Tile& tile, int index, int filter_pass, bool is_first_window,
                                      bool is_only_window) {
    if (filter_pass > 0) {
      tma_store_wait_group_read();
      sync_warpgroup(warpgroup_index_);
    }
    const int first = first_filter_ + filter_pass * problem_.filters_per_pass;
    const int filters =
        min(problem_.filters_per_pass, problem_.filters - filter_pass * problem_.filters_per_pass);
    const Results<Element> results =
        Results<Element>::template of<kHasEpilogue>(problem_, tile, first, filters, warpgroup_shared_);
    multiply(results, filter_pass);
    if (kHasEpilogue && problem_.post_pass != PostPass::none) {
      sync_warpgroup(warpgroup_index_);
      run_post_pass(problem_, index, first, filters, warpgroup_shared_);
    }
    fence_proxy_async();
    sync_warpgroup(warpgroup_index_);
    if (kHasEpilogue || is_only_window) {
      store_by_tma<kHasEpilogue>(problem_, results);
    } else {
      store_by_threads(problem_, index, first, filters, warpgroup_shared_, !is_first_window);
    }
  }

  // Multiplies the staged input by the matrix of a filter pass and writes the results to shared memory.
  __device__ void multiply(const Results<Element>& results, int filter_pass) {
    constexpr int kColumns = kAccumulatorTiles * kAccumulatorTileColumns;
    const SmemDescriptor weights = pass_matrix<Format, kAccumulatorTiles>(problem_, shared_, filter_pass);
    const FilterScale* const pass_scales = scales() + filter_pass * (kColumns >> problem_.log2_outputs);
    const StoreMode store_mode = store_mode_of<kAccumulatorTiles>(problem_, results);
#pragma unroll 1
    for (int image = 0; image < results.tile.images; ++image) {
#pragma unroll 1
      for (int first_row = 0; first_row < problem_.product_rows; first_row += kWgmmaM) {
        float accumulators[kAccumulatorTiles][4];
        issue_wgmmas<Format, kAccumulatorTiles>(
            problem_,
            SmemDescriptor::at(staged_input(), 0).advanced(image * problem_.image_vectors + first_row),
            weights, accumulators);
        const StoreContext<kAccumulatorTiles, kHasEpilogue> store_context(problem_, results, store_mode,
                                                                          image, first_row, pass_scales);
        wgmma_wait_all(accumulators);
        write_results<Format, false>(problem_, results, store_context, needs_second_factor_, accumulators);
      }
    }
  }

  const Arguments<Element>& problem_;
  const int warpgroup_index_;  // in the block
  const int first_channel_, first_filter_;
  unsigned char *const shared_,
      *const warpgroup_shared_;  // shared memory of the block, and the warpgroup's part of it
  StagedItem* const items_;
  Element* const raw_;
  bool can_multiply_ = true;  // false if the naive loop computes all tiles, because of the weights
  int weight_windows_ = 1;
  int top_ = kFirstTop;                 // highest binade of the pixels' first window
  int scaled_for_ = kFirstTop + 1;      // highest binade of the window of the current scales
  bool needs_second_factor_ = false;    // one float32 cannot hold the scale
  bool has_pending_tma_input_ = false;  // TMA loads of the next tile's input have started
  PipelineState<1> input_pipeline_;
};

// Persistent blocks of some warpgroups, each of which computes its own tiles; grid.y is the conv group.
// kHasEpilogue is a template argument, since the epilogue would cost the other kernels registers.
template <typename Format, int kAccumulatorTiles, bool kHasEpilogue>
__global__ void __launch_bounds__(max_warpgroups(kAccumulatorTiles) * kWarpgroupThreads, 1)
    kernel(const __grid_constant__ Arguments<typename Format::Element> problem) {
#if defined(__CUDA_ARCH__) && !defined(__CUDA_ARCH_FEAT_SM90_ALL)
#error "toeplitz has code for compute capability 9.0 alone: compile it for sm_90a"
#else
  extern __shared__ __align__(128) unsigned char shared[];
  griddepcontrol_wait();
  Warpgroup<Format, kAccumulatorTiles, kHasEpilogue> warpgroup(problem, shared);
  warpgroup.set_up();
  warpgroup.compute_tiles();
#endif
}

}  // namespace convswap::toeplitz
