#pragma once

// The kernel of the algorithm `few_channels`. few_channels.cc explains the method and fills the arguments.

#include "cuda/epilogue/activations.cuh"
#include "cuda/few_channels/input.cuh"
#include "cuda/few_channels/unit.cuh"
#include "cuda/few_channels/weights.cuh"
#include "cuda/primitives/dependent_launch.cuh"
#include "cuda/primitives/naive_conv.cuh"

namespace convswap::few_channels {

// Computes a tile with the naive loop, for data with infinities or NaN. The tensor core would multiply them
// by the zeros that pad K, which gives NaN.
template <bool kNhwc, typename Element>
__device__ __noinline__ void compute_naive(const Arguments<Element>& problem, Tile tile, int first_filter,
                                           int filters) {
  const int first_row = tile.first_row << problem.log2_folds;
  const int rows = min(problem.tile_rows << problem.log2_folds, problem.output_height - first_row);
  const int columns = min(problem.quads_per_half_row * kQuad, problem.output_width - tile.first_column);
  const int images = min(problem.tile_images, problem.batch - tile.n);
  const int count = images * filters * rows * columns;
  for (int i = threadIdx.x; i < count; i += blockDim.x) {
    const int q = tile.first_column + i % columns;
    const int p = first_row + i / columns % rows;
    const int k = first_filter + i / (columns * rows) % filters;
    const long long n = tile.n + i / (columns * rows) / filters;
    float sum = naive_conv_sum<Element, float>(problem, problem.naive_conv, n, k, 0, p, q,
                                               problem.first_channel, problem.pass_channels);
    Element* y = problem.y + y_index<kNhwc>(problem, n, k, p, q);
    if (problem.b != nullptr) sum += static_cast<float>(problem.b[k]);
    if (problem.accumulates) sum += static_cast<float>(*y);
    if (problem.activates) sum = activated(problem.naive_conv.epilogue, sum);
    *y = static_cast<Element>(sum);
  }
}

// Filters and channels of a block: the filters of a conv group or, if their weights do not fit, a part of
// them.
struct BlockFilters {
  int padded_filters, filters;  // folded filters: with padding, and without
  int first_filter;             // first output channel, folds not counted
  int first_channel;            // first channel of x, in this pass

  template <typename Arguments>
  __device__ BlockFilters(const Arguments& problem, int padded) : padded_filters(padded) {
    const int group = blockIdx.y / problem.blocks_per_group;
    const int first_folded = blockIdx.y % problem.blocks_per_group * padded_filters;
    filters = min(padded_filters, problem.folded_filters - first_folded);
    first_filter = (group * problem.folded_filters + first_folded) >> problem.log2_folds;
    first_channel = group * problem.channels + problem.first_channel;
  }
};

// One thread block of the kernel. Weights and pixels are converted with a guessed scale, and converted again
// in the rare case that they do not fit.
template <typename Format, int kBundle, int kTaps, int kAccumulatorTiles, bool kNhwc>
class Block {
  using Element = typename Format::Element;

 public:
  __device__ Block(const Arguments<Element>& problem, unsigned char* shared)
      : problem_(problem),
        shared_(shared),
        block_filters_(problem, problem.filter_blocks * kAccumulatorTiles * kMmaN) {}

  // Starts the copy of the first tile's input and meanwhile prepares the state that all tiles share.
  __device__ void set_up() {
    start_input_copy(blockIdx.x);
    if (threadIdx.x == 0) {
      // Members are set one by one: NVRTC would load an aggregate from global memory, and all threads would
      // wait for the load.
      state().max_bits = 0u, state().min_bits_less_one = ~0u;
      state().weight_windows = 1u;
      state().needs_second_factor = 0u;
    }
    const int bundle_slots = problem_.steps * kBundlesPerStep;
    for (int i = threadIdx.x; i < bundle_slots; i += blockDim.x) {
      at(problem_.shared.bundles)[i] = filter_bundle<kBundle>(problem_, i);
    }
    find_quad_offsets<kBundle, kNhwc>(problem_, at(problem_.shared.quad_offsets));
    for (int i = threadIdx.x; i < problem_.zero_words; i += blockDim.x) {
      reinterpret_cast<unsigned*>(raw())[problem_.raw_words + i] = 0u;
    }
    for (int i = threadIdx.x; i < block_filters_.padded_filters; i += blockDim.x) tops()[i] = kFirstTop;
    __syncthreads();
  }

  // Computes the block's tiles, once for each binade window of the weights.
  __device__ void compute_tiles() {
    for (int window = 0; window < weight_windows_; ++window) {
      stage_window_of_weights(window);
      if (window > 0) {
        start_input_copy(blockIdx.x);
        scaled_for_ = top_ + 1;
      }
      for (int index = blockIdx.x; index < problem_.output_tiles; index += gridDim.x) compute(index, window);
      if (window + 1 < weight_windows_) __syncthreads();
    }
  }

 private:
  // Regions of shared memory. Addresses are computed at each use, since a register costs more than an
  // addition.
  __device__ unsigned char* shared() const { return shared_ + optimization_barrier(0u); }
  template <typename Part>
  __device__ Part* at(Offset<Part> offset) const {
    return offset.in(shared());
  }
  __device__ Element* raw() const { return reinterpret_cast<Element*>(at(problem_.shared.raw)); }
  __device__ StagedLine<kBundle>* lines() const {
    return reinterpret_cast<StagedLine<kBundle>*>(at(problem_.shared.lines));
  }
  __device__ int* tops() const { return at(problem_.shared.tops); }
  __device__ BlockState& state() const { return *at(problem_.shared.state); }

  // Weights of the block's first filter.
  __device__ const Element* weights() const {
    return problem_.w + static_cast<long long>(block_filters_.first_filter) * problem_.channels *
                            problem_.filter_height * problem_.filter_width;
  }

  // Starts the copy of a tile's input if the tile exists.
  __device__ void start_input_copy(int index) const {
    if (index < problem_.output_tiles)
      copy_tile(problem_, Tile(problem_, index), block_filters_.first_channel, raw());
    cp_async_commit_group();
  }

  // Stages a binade window of the weights. If the weights do not fit the guessed scale, measures their range,
  // which gives the number of binade windows, and stages them again.
  __device__ void stage_window_of_weights(int window) {
    bool are_measured = window > 0;
    do {
      const ValueRange<Element> range = stage_weights<Format, kBundle, kTaps, kAccumulatorTiles, kNhwc>(
          problem_, weights(), at(problem_.shared.bundles), block_filters_.filters, tops(), window,
          problem_.shared.weights(shared()));
      if (are_measured || __syncthreads_and(fits<Format>(range, kFirstTop))) return;
      measure_weights();
      are_measured = true;
    } while (weights_are_finite_);
  }

  __device__ void measure_weights() {
    const int taps = problem_.filter_height * problem_.filter_width;
    const auto weights_of = [&](int filter) {
      const long long folded = filter >> problem_.log2_folds;
      return weights() + (folded * problem_.channels + problem_.first_channel) * taps;
    };
    measure_filters<Format, true>(weights_of, block_filters_.filters, problem_.pass_channels * taps, tops(),
                                  &state().weight_windows);
    __syncthreads();
    weights_are_finite_ = state().weight_windows != ~0u;
    if (weights_are_finite_) weight_windows_ = static_cast<int>(state().weight_windows);
  }

  // Computes a tile with a binade window of the weights, and starts the copy of the next tile.
  __device__ void compute(int index, int weight_window) {
    const Tile tile(problem_, index);
    const ValueRange<Element> range = convert(tile, index);
    const bool all_fit = __syncthreads_and(fits<Format>(range, top_) && weights_are_finite_);
    const int windows = all_fit ? 1 : find_windows(range);
    if (windows == 0) {
      start_input_copy(index + gridDim.x);
      if (weight_window == 0) {
        compute_naive<kNhwc>(problem_, tile, block_filters_.first_filter,
                             block_filters_.filters >> problem_.log2_folds);
      }
      return;
    }
    for (int window = 0; window < windows; ++window) {
      const int window_top = top_ - window * kBinades;
      const bool is_first = weight_window + window == 0;
      const bool is_last = weight_window + 1 == weight_windows_ && window + 1 == windows;
      if constexpr (Format::kIsScaled) {
        if (!all_fit) convert_window(tile, window_top);
      }
      if (scaled_for_ != window_top) scale_for(window_top, weight_window, is_first);
      if (window + 1 == windows) start_input_copy(index + gridDim.x);
      compute_tile<Format, kBundle, kTaps, kAccumulatorTiles, kNhwc>(
          problem_, state().tile_info, block_filters_.filters, problem_.accumulates || !is_first,
          problem_.activates && is_last, state().needs_second_factor != 0, shared_);
    }
  }

  // Converts a tile's input with the current scale and returns the value range that the thread has read.
  __device__ ValueRange<Element> convert(const Tile& tile, int index) {
    if (index == blockIdx.x || !have_same_lines(problem_, tile, Tile(problem_, index - gridDim.x))) {
      find_lines<kBundle>(problem_, tile, block_filters_.first_channel, lines());
    }
    cp_async_wait_group<0>();
    __syncthreads();
    if (threadIdx.x == 0)
      state().tile_info = tile_info_of<kNhwc>(problem_, tile, block_filters_.first_filter);
    return stage_tile<Format, kBundle, false>(problem_, tile, lines(), raw(), BinadeWindow(top_),
                                              at(problem_.shared.staged));
  }

  // Sets top_ to the first binade window of a tile that did not fit, from the ranges of all threads. Returns
  // the number of binade windows, or 0 if the tensor core cannot multiply the tile.
  __device__ int find_windows(ValueRange<Element> range) {
    const ValueRange<Element> tile_range =
        reduce_threads(range, state(), threadIdx.x == 0, [] { __syncthreads(); });
    if (!weights_are_finite_ || !tile_range.is_finite()) return 0;
    top_ = tile_range.window_top();
    return tile_range.windows();
  }

  // Converts the values of a tile's input that lie in a binade window; all others become zero.
  __device__ void convert_window(const Tile& tile, int window_top) {
    __syncthreads();
    stage_tile<Format, kBundle, true>(problem_, tile, lines(), raw(), BinadeWindow(window_top),
                                      at(problem_.shared.staged));
    scaled_for_ = window_top + 1;
  }

  // Sets the scales that undo those of a binade window of the pixels and one of the weights.
  __device__ void scale_for(int window_top, int weight_window, bool is_first) {
    if (threadIdx.x == 0) state().needs_second_factor = 0;
    __syncthreads();
    find_scales<Format>(
        problem_, block_filters_.filters, block_filters_.padded_filters, tops(), weight_window, window_top,
        problem_.b == nullptr || !is_first ? nullptr : problem_.b + block_filters_.first_filter,
        at(problem_.shared.scales), at(problem_.shared.second_factors), &state());
    __syncthreads();
    scaled_for_ = window_top;
  }

  const Arguments<Element>& problem_;
  unsigned char* const shared_;
  const BlockFilters block_filters_;
  bool weights_are_finite_ = true;
  int weight_windows_ = 1;
  int top_ = kFirstTop;             // highest binade of the pixels' first binade window
  int scaled_for_ = kFirstTop + 1;  // highest binade of the current scales; top_ + 1: none
};

// Persistent blocks: grid.x divides the output tiles, grid.y the conv groups and, if the weights of a conv
// group do not fit, the parts of its filters. kNhwc: y is NHWC; x is NCHW.
template <typename Format, int kBundle, int kTaps, int kAccumulatorTiles, bool kNhwc>
__global__ void __launch_bounds__(kMaxThreads, 1)
    kernel(const __grid_constant__ Arguments<typename Format::Element> problem) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#error "few_channels needs compute capability 8.0 or newer"
#else
  extern __shared__ __align__(16) unsigned char shared[];
  griddepcontrol_wait();
  Block<Format, kBundle, kTaps, kAccumulatorTiles, kNhwc> block(problem, shared);
  block.set_up();
  block.compute_tiles();
#endif
}

}  // namespace convswap::few_channels
