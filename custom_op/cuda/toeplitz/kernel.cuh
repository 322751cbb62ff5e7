#pragma once

// The kernel of the algorithm `toeplitz`; toeplitz.cc tells the idea and fills the arguments.

#include "cuda/primitives/dependent_launch.cuh"
#include "cuda/primitives/naive_conv.cuh"
#include "cuda/primitives/pipeline_state.cuh"
#include "cuda/primitives/wgmma.cuh"
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
  for (int i = warpgroup_thread(); i < count; i += kWarpgroupThreads) {
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
        static_cast<Element>(naive_conv_output<Element, float>(problem, problem.definition, n, k, 0, p, q));
  }
}

// Nothing may stay infinite that is left as it is when others are staged: it meets weights of zero.
template <typename Element>
__device__ inline void clear_cores(const Arguments<Element>& problem, unsigned* cores) {
  for (int i = warpgroup_thread(); i < problem.cores_bytes / 4; i += kWarpgroupThreads) cores[i] = 0u;
}

// The Toeplitz matrix of a filter block.
template <typename Format, int kTiles, typename Element = typename Format::Element>
__device__ inline SmemDescriptor block_matrix(const Arguments<Element>& problem, unsigned char* shared,
                                              int block) {
  return SmemDescriptor::at(problem.shared.matrix().in(shared), kTiles * 8)
      .advanced(block * Format::kParts * problem.steps * kTiles * 16);
}

// Begins sums = kRows rows of the input, from `cores` on, times the matrix of one filter block; what is left
// is to wait for them (wgmma_wait_all).
template <typename Format, int kTiles, typename Element = typename Format::Element>
__device__ inline void begin_sums(const Arguments<Element>& problem, SmemDescriptor cores,
                                  SmemDescriptor matrix, float (&accumulators)[kTiles][4]) {
  constexpr unsigned kStepUnits = kTiles * 16;  // of 16 bytes
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
#pragma unroll
    for (int j = 0; j < 4; ++j) accumulators[t][j] = 0.0f;
  }
  wgmma_fence(accumulators);
  cores = cores.warp_uniform(), matrix = matrix.warp_uniform();
  const auto correct = [&] { scale_accumulators(accumulators, Format::kCorrectionScale); };
  for_each_term<Format, Format::kTerms>(correct, [&](int term) {
    const SmemDescriptor a = cores.advanced(Format::pixel_part(term) * problem.part_cores);
    const SmemDescriptor b = matrix.advanced(Format::weight_part(term) * problem.steps * kStepUnits);
    const auto add = [&](int step) {
      wgmma<typename Format::Number, kTiles>(accumulators, a.advanced(problem.step_places[step]),
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
  wgmma_commit_group();
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
  const int warpgroup = warpgroup_index(), group = blockIdx.y;
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
    if (block > 0) tma_store_wait_group_read();
    const int first = block * problem.filters_per_block;
    const int filters = min(problem.filters_per_block, problem.filters - first);
    const Results<Element> results =
        Results<Element>::template of<true>(problem, tile, first_filter + first, filters, own);
    const SmemDescriptor matrix = block_matrix<Format, kTiles>(problem, shared, block);
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
        fence_proxy_async();
        seen = reduce_warpgroup(seen, warpgroup, &state);
        float accumulators[kTiles][4];
        begin_sums<Format, kTiles>(
            problem, SmemDescriptor::at(cores, 0).advanced(image * problem.image_cores + first_row), matrix,
            accumulators);
        wgmma_wait_all(accumulators);
#pragma unroll
        for (int t = 0; t < kTiles; ++t) {
          const ColumnScales scale(problem, results, block_scales, t * kTileColumns + 2 * (threadIdx.x % 4),
                                   0);
          whole[t][0] += accumulators[t][0] * scale.first.rest * scale.first.factor;
          whole[t][1] += accumulators[t][1] * scale.second.rest * scale.second.factor;
          whole[t][2] += accumulators[t][2] * scale.first.rest * scale.first.factor;
          whole[t][3] += accumulators[t][3] * scale.second.rest * scale.second.factor;
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
    fence_proxy_async();
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
  const int warpgroups = blockDim.x / kWarpgroupThreads, warpgroup = warpgroup_index();
  const int of_turn = blockIdx.x + gridDim.x * warpgroup;
  const bool is_full = place - of_turn + static_cast<int>(gridDim.x) * warpgroups <= problem.tiles;
  return is_full ? place - of_turn + static_cast<int>(blockIdx.x) * warpgroups + warpgroup : place;
}

// A warpgroup at work: it takes tiles on its own, and stages weights together with all of the block. Weights
// and pixels are converted by a guess of how large they are, and again in the rare case that it does not
// hold.
template <typename Format, int kTiles, bool kFinishes>
class Warpgroup {
  using Element = typename Format::Element;

 public:
  __device__ Warpgroup(const Arguments<Element>& problem, unsigned char* shared)
      : problem_(problem),
        number_(warpgroup_index()),
        first_channel_(blockIdx.y * problem.channels),
        first_filter_(blockIdx.y * problem.filters),
        shared_(shared),
        own_(problem.shared.warpgroups.in(shared) + number_ * problem.shared.warpgroup_bytes),
        items_(problem.shared.items.in(shared)),
        raw_(reinterpret_cast<Element*>(problem.shared.raw.in(own_))) {}

  // Finds what is the same for all tiles.
  __device__ void set_up() {
    find_items(problem_, items_);
    for (int i = threadIdx.x; i < problem_.filters; i += blockDim.x) tops()[i] = kFirstTop;
    clear_cores(problem_, cores());
    // Beside the copies too, since what lies there meets weights of zero.
    for (int i = warpgroup_thread(); i < problem_.raw_bytes / 4; i += kWarpgroupThreads) {
      reinterpret_cast<unsigned*>(raw_)[i] = 0u;
    }
    fence_proxy_async();
    if (warpgroup_thread() == 0) {
      state().most = 0u, state().least_less_one = ~0u;
      tma_mbarrier_init(&state().copies);
    }
    if (threadIdx.x == 0) weight_state().windows = 1;
    __syncthreads();
  }

  // Computes the warpgroup's tiles, once for each window of the weights.
  __device__ void compute_tiles() {
    const int places = gridDim.x * (blockDim.x / kWarpgroupThreads);
    const int first_place = blockIdx.x + gridDim.x * number_;
    copy(tile_at<kFinishes>(problem_, first_place));
    for (int window = 0; window < weight_windows_; ++window) {
      stage_window_of_weights(window);
      scaled_for_ = top_ + 1;
      for (int place = first_place; place < problem_.tiles; place += places) {
        compute(place, place + places, window);
      }
      if (window + 1 < weight_windows_) {
        __syncthreads();
        copy(tile_at<kFinishes>(problem_, first_place));
      }
    }
    tma_store_wait_group_read();
  }

 private:
  // The other parts of shared memory: the block's, and the warpgroup's own. (Items and what copies bring are
  // found once: where they were found each time, the kernel for float16 of 48 columns spilled a register.)
  __device__ unsigned* matrix() const { return problem_.shared.matrix().in(shared_); }
  __device__ int* tops() const { return problem_.shared.tops.in(shared_); }
  __device__ WeightState& weight_state() const { return *problem_.shared.weight_state.in(shared_); }
  __device__ unsigned* cores() const { return problem_.shared.cores().in(own_); }
  __device__ FilterScale* scales() const { return problem_.shared.scales.in(own_); }
  __device__ WarpgroupState& state() const { return *problem_.shared.state.in(own_); }

  // Stages a window of the weights, with all warpgroups of the block. Where the guess does not hold, they are
  // measured, which tells how many windows there are, and staged again.
  __device__ void stage_window_of_weights(int window) {
    const Element* const w = problem_.w + static_cast<long long>(first_filter_) * problem_.channels *
                                              problem_.filter_height * problem_.filter_width;
    bool are_measured = window > 0;
    do {
      const ValueRange<Element> range = stage_weights<Format, kTiles>(problem_, w, tops(), window, matrix());
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
    // What follows takes whole sums, which windows of weights would give one after the other.
    const unsigned windows = weight_state().windows;
    can_multiply_ = windows == 1 || (!kFinishes && windows != ~0u);
    if (can_multiply_) weight_windows_ = static_cast<int>(windows);
  }

  // Starts the copies of a tile's input, where there is such a tile and copies bring it.
  __device__ void copy(int index) {
    is_copied_ = start_copies<kFinishes>(problem_, index, first_channel_, raw_, &state().copies);
  }

  // Computes the tile of a place with a window of the weights, and has the input of the next brought
  // meanwhile.
  __device__ void compute(int place, int next_place, int weight_window) {
    const int index = tile_at<kFinishes>(problem_, place);
    const Tile tile = Tile::of<kFinishes>(problem_, index);
    const ValueRange<Element> range = convert(tile);
    const bool all_fit = sync_warpgroup_all(number_, fits<Format>(range, top_) && can_multiply_);
    const int next = tile_at<kFinishes>(problem_, next_place);
    copy(next);
    const int windows = all_fit ? 1 : find_windows(range);
    if constexpr (kFinishes && Format::kIsScaled) {
      if (windows != 1) {
        compute_apart<Format, kTiles>(problem_, index, top_, windows);
        scaled_for_ = top_ + 1;
        return;
      }
    }
    if (windows == 0) {
      if (weight_window == 0) compute_as_defined<kFinishes>(problem_, index, first_filter_);
      clear_cores(problem_, cores());
      sync_warpgroup(number_);
      return;
    }
    if (next < problem_.tiles && !is_copied_) {
      prefetch_tile(problem_, Tile::of<kFinishes>(problem_, next), first_channel_);
    }
    for (int window = 0; window < windows; ++window) {
      const int window_top = top_ - window * kBinades;
      const bool is_first = weight_window + window == 0;
      if constexpr (Format::kIsScaled) {
        if (!all_fit) convert_window(tile, window_top);
      }
      if (scaled_for_ != window_top) scale_for(window_top, weight_window, is_first);
      for (int block = 0; block < problem_.filter_blocks; ++block) {
        compute_block(tile, index, block, is_first, windows == 1 && weight_windows_ == 1);
      }
    }
  }

  // Converts a tile's input by the guess; returns what the thread has seen.
  __device__ ValueRange<Element> convert(const Tile& tile) {
    if (is_copied_) {
      mbarrier_wait(&state().copies, copies_.phase());
      copies_.advance();
    }
    const ValueRange<Element> range = stage_tile<Format, false>(
        problem_, tile, first_channel_, BinadeWindow(top_), items_, is_copied_, raw_, {}, cores());
    fence_proxy_async();
    tma_store_wait_group_read();
    return range;
  }

  // Finds the windows of a tile's input for which the guess does not hold, of the range that each thread has
  // seen. Returns how many there are; none where the tensor core cannot multiply it.
  __device__ int find_windows(ValueRange<Element> range) {
    const ValueRange<Element> whole = reduce_warpgroup(range, number_, &state());
    if (!can_multiply_ || !whole.is_finite()) return 0;
    top_ = whole.window_top();
    return whole.windows();
  }

  // Converts of a tile's input what a window holds.
  __device__ void convert_window(const Tile& tile, int window_top) {
    sync_warpgroup(number_);
    stage_tile<Format, true>(problem_, tile, first_channel_, BinadeWindow(window_top), items_, false, raw_,
                             {0, tile.images, 0, problem_.input_rows}, cores());
    fence_proxy_async();
    scaled_for_ = window_top + 1;
    sync_warpgroup(number_);
  }

  // Finds the scales that undo those of a window of the pixels and one of the weights.
  __device__ void scale_for(int window_top, int weight_window, bool is_first) {
    const Element* const bias = problem_.b == nullptr || !is_first ? nullptr : problem_.b + first_filter_;
    const bool is_near =
        find_scales<Format, kTiles>(problem_, tops(), weight_window, window_top, bias, true, scales());
    scaled_for_ = window_top;
    is_far_ = !sync_warpgroup_all(number_, is_near);
  }

  // Computes a filter block's results of the converted window, and stores them or adds them to what is
  // stored. `is_first`, `is_only`: of all windows of the pixels and the weights.
  __device__ void compute_block(const Tile& tile, int index, int block, bool is_first, bool is_only) {
    if (block > 0) {
      tma_store_wait_group_read();
      sync_warpgroup(number_);
    }
    const int first = first_filter_ + block * problem_.filters_per_block;
    const int filters =
        min(problem_.filters_per_block, problem_.filters - block * problem_.filters_per_block);
    const Results<Element> results =
        Results<Element>::template of<kFinishes>(problem_, tile, first, filters, own_);
    multiply(results, block);
    if (kFinishes && problem_.finish != Finish::nothing) {
      sync_warpgroup(number_);
      finish(problem_, index, first, filters, own_);
    }
    fence_proxy_async();
    sync_warpgroup(number_);
    if (kFinishes || is_only) {
      store_in_bulk<kFinishes>(problem_, results);
    } else {
      store_by_threads(problem_, index, first, filters, own_, !is_first);
    }
  }

  // Multiplies the converted window by the matrix of a filter block. Results come to where they wait.
  __device__ void multiply(const Results<Element>& results, int block) {
    constexpr int kColumns = kTiles * kTileColumns;
    const SmemDescriptor weights = block_matrix<Format, kTiles>(problem_, shared_, block);
    const FilterScale* const block_scales = scales() + block * (kColumns >> problem_.log2_outputs);
    const Writing writing = writing_of<kTiles>(problem_, results);
#pragma unroll 1
    for (int image = 0; image < results.tile.images; ++image) {
#pragma unroll 1
      for (int first_row = 0; first_row < problem_.product_rows; first_row += kRows) {
        float accumulators[kTiles][4];
        begin_sums<Format, kTiles>(
            problem_, SmemDescriptor::at(cores(), 0).advanced(image * problem_.image_cores + first_row),
            weights, accumulators);
        const Prepared<kTiles, kFinishes> prepared(problem_, results, writing, image, first_row,
                                                   block_scales);
        wgmma_wait_all(accumulators);
        write_results<Format, false>(problem_, results, prepared, is_far_, accumulators);
      }
    }
  }

  const Arguments<Element>& problem_;
  const int number_;  // in the block
  const int first_channel_, first_filter_;
  unsigned char *const shared_, *const own_;  // shared memory: the block's, and the warpgroup's own part
  StagedItem* const items_;
  Element* const raw_;
  bool can_multiply_ = true;  // with these weights
  int weight_windows_ = 1;
  int top_ = kFirstTop;             // of the pixels' uppermost window
  int scaled_for_ = kFirstTop + 1;  // the window that the scales were last found for
  bool is_far_ = false;             // one factor does not hold what undoes them
  bool is_copied_ = false;          // the input of the next tile, or is being
  PipelineState<1> copies_;
};

// Persistent blocks of some warpgroups, which take tiles on their own; grid.y is the groups. kFinishes:
// something follows the convolution. A kernel of its own, since it costs the others registers.
template <typename Format, int kTiles, bool kFinishes>
__global__ void __launch_bounds__(most_warpgroups(kTiles) * kWarpgroupThreads, 1)
    kernel(const __grid_constant__ Arguments<typename Format::Element> problem) {
#if defined(__CUDA_ARCH__) && !defined(__CUDA_ARCH_FEAT_SM90_ALL)
#error "toeplitz has code for compute capability 9.0 alone: compile it for sm_90a"
#else
  extern __shared__ __align__(128) unsigned char shared[];
  griddepcontrol_wait();
  Warpgroup<Format, kTiles, kFinishes> warpgroup(problem, shared);
  warpgroup.set_up();
  warpgroup.compute_tiles();
#endif
}

}  // namespace convswap::toeplitz
