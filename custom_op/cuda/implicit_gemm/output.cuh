#pragma once

// Results: from the accumulators to shared memory, in the order of y, and from there to y.

#include "conv/host_device.h"
#include "cuda/implicit_gemm/arguments.h"
#include "cuda/primitives/naive_conv.cuh"
#include "cuda/primitives/shared_memory.cuh"
#include "cuda/primitives/tensor_core_formats.cuh"
#include "cuda/primitives/tma.cuh"

namespace convswap::implicit_gemm {

// Computes the offset of each GEMM column's result in bytes from the first fold of the first filter. Columns
// between rows and after the last row are no outputs.
template <int kColumns, typename Element>
__device__ inline void find_output_offsets(const Arguments<Element>& problem, int* output_offsets) {
  const int pitch = problem.pitch.divisor;
  for (int i = threadIdx.x; i < problem.output_tiles * kColumns; i += blockDim.x) {
    const int group = problem.pitch.quotient_of_any(i);
    const int column = i - group * pitch;
    const int row = group * problem.folds;
    int offset = kNoOutput;
    if (column < problem.output_width && row < problem.output_height) {
      offset = (row * problem.output_width + column) * static_cast<int>(sizeof(Element));
    }
    const int thread = i % 8 / 2, tile = i % kColumns / kTileColumns;
    output_offsets[i / kColumns * kOutputsPerTile + thread * kOutputsPerThread + 2 * tile + i % 2] = offset;
  }
}

// Number of elements from the preceding kAlignment boundary to the first result of a block's filters. It is
// the same in y and in the result buffer.
template <typename Element>
__device__ inline int results_misalignment(const Arguments<Element>& problem, int image, int first_filter) {
  const long long plane = static_cast<long long>(image) * problem.out_channels + first_filter;
  return static_cast<int>((plane * problem.output_plane + problem.y_misalignment) &
                          (kAlignment / sizeof(Element) - 1));
}

// Computes the scales of all accumulator rows. Called by a warpgroup. `top` is the uppermost binade of the
// input's binade window and `weight_window` the index of the weights' binade window. `has_bias`: the results
// are the first of their image and include the bias. Returns whether one factor holds the scale of this
// thread's row.
template <typename Format, typename Element = typename Format::Element>
__device__ inline bool find_row_scales(const Arguments<Element>& problem, const int* tops, int weight_window,
                                       int top, int first_filter, int filters, bool has_bias,
                                       RowScale* scales) {
  const int row = threadIdx.x % 128;
  if (row >= kWgmmaM) return true;
  RowScale scale = {1.0f, 1.0f, 0.0f, 0, {-1, -1}};
  bool is_near = true;
  const RowMapping mapping = problem.row_mapping[row];
  if (mapping.filter >= 0 && mapping.filter < filters) {
    const int offset = (mapping.filter * problem.output_plane + mapping.fold * problem.output_width) *
                       static_cast<int>(sizeof(Element));
    const bool is_double_buffered = mapping.filter >= filters - problem.double_buffered_filters;
    scale.offsets[0] = offset + (is_double_buffered ? kDoubleBufferGap : 0);
    scale.offsets[1] = scale.offsets[0] + (is_double_buffered ? problem.second_buffer_offset : 0);
    scale.end =
        (problem.output_plane - mapping.fold * problem.output_width) * static_cast<int>(sizeof(Element));
    if (problem.b != nullptr && has_bias) {
      scale.bias = Format::to_float(problem.b[first_filter + mapping.filter]);
    }
    if constexpr (Format::kIsScaled) {
      const PowerOfTwo inverse_scale = undo_scales(tops[mapping.filter] - weight_window * kBinades, top);
      scale.factor = inverse_scale.factor, scale.second_factor = inverse_scale.second_factor;
      is_near = inverse_scale.fits_one_factor;
    }
  }
  scales[row] = scale;
  return is_near;
}

// Writes a thread's accumulators of kTiles tiles to shared memory. The offsets of the first tiles are fetched
// while wgmmas are still in flight.
template <int kTiles>
class ResultWriter {
 public:
  // `scales` has all rows, `output_offsets` these columns. `buffer` is the buffer of the double-buffered
  // filters.
  __device__ ResultWriter(const RowScale* scales, const int* output_offsets, int buffer)
      : outputs_(reinterpret_cast<const int4*>(output_offsets + threadIdx.x % 4 * kOutputsPerThread)) {
    const int row = threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const RowScale& scale = scales[row + 8 * i];
      factors_[i] = scale.factor, second_factors_[i] = scale.second_factor, biases_[i] = scale.bias;
      ends_[i] = scale.end, offsets_[i] = scale.offsets[buffer];
    }
    fetch(0);
  }

  // `discard` is this thread's discard area, after all results.
  template <typename Format>
  __device__ void write(SharedAddress results, SharedAddress discard, bool needs_second_factor,
                        bool is_ragged, bool writes_pairs, float (&accumulators)[kTiles][4]) {
    if (Format::kIsScaled && needs_second_factor) {
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
#pragma unroll
        for (int i = 0; i < 4; ++i) accumulators[t][i] *= second_factors_[i / 2];
      }
    }
    if (writes_pairs) {
      write_as<Format, true, true>(results, discard, accumulators);
    } else if (is_ragged) {
      write_as<Format, true, false>(results, discard, accumulators);
    } else {
      write_as<Format, false, false>(results, discard, accumulators);
    }
  }

 private:
  static constexpr int kTilesPerFetch = 4;

  // kIsRagged: some columns may be in the last folded row, where some folds have no output row. kPairs:
  // neighbouring results are both outputs or both not, and aligned for one store.
  template <typename Format, bool kIsRagged, bool kPairs>
  __device__ void write_as(SharedAddress results, SharedAddress discard,
                           const float (&accumulators)[kTiles][4]) {
#pragma unroll
    for (int first = 0; first < kTiles; first += kTilesPerFetch) {
      if (first > 0) fetch(first);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (offsets_[i] < 0) continue;
        const SharedAddress row = results + offsets_[i];
        const auto address_of = [&](int offset) {
          return min(row + (kIsRagged && offset >= ends_[i] ? kNoOutput : offset), discard);
        };
        const auto result_of = [&](float sum) { return sum * factors_[i] + biases_[i]; };
#pragma unroll
        for (int t = 0; t < kTilesPerFetch && first + t < kTiles; ++t) {
          const int4 four_offsets = fetched_offsets_[t / 2];
          const int offset[] = {t % 2 == 0 ? four_offsets.x : four_offsets.z,
                                t % 2 == 0 ? four_offsets.y : four_offsets.w};
          const float results[] = {result_of(accumulators[first + t][2 * i]),
                                   result_of(accumulators[first + t][2 * i + 1])};
          if constexpr (kPairs) {
            store_shared_at(address_of(offset[0]), Format::pack(results));
          } else {
#pragma unroll
            for (int j = 0; j < 2; ++j) {
              const float result[] = {results[j]};
              store_shared_at(address_of(offset[j]), Format::pack(result));
            }
          }
        }
      }
    }
  }

  __device__ void fetch(int first) {
#pragma unroll
    for (int t = 0; t < kTilesPerFetch; t += 2) fetched_offsets_[t / 2] = outputs_[(first + t) / 2];
  }

  const int4* outputs_;
  // Values of the thread's two accumulator rows.
  float factors_[2], second_factors_[2], biases_[2];
  int offsets_[2], ends_[2];
  int4 fetched_offsets_[kTilesPerFetch / 2];
};

// How an image's results reach y: by TMA stores, by TMA reductions, or added by the lanes.
enum class StoreMode { store, add, add_exactly };

// Stores the results of some of a block's filters to y, or adds them to y. Called by one warp. TMA moves
// whole 16-byte units. The lanes store the at most seven elements at each end, and everything that is added
// exactly. `results` is the address of the block's first filter.
template <typename Element>
__device__ inline void store_results(const Arguments<Element>& problem, int image, int first_filter,
                                     int begin_filter, int end_filter, StoreMode store_mode,
                                     const unsigned char* results) {
  constexpr int kAlignedElements = kAlignment / sizeof(Element);
  const int lane = threadIdx.x % 32;
  const int begin = begin_filter * problem.output_plane;
  const int elements = end_filter * problem.output_plane - begin;
  const int misalignment = results_misalignment(problem, image, first_filter) + begin;
  const Element* const from = reinterpret_cast<const Element*>(results) + misalignment;
  Element* const to =
      problem.y + begin +
      (static_cast<long long>(image) * problem.out_channels + first_filter) * problem.output_plane;
  // `head` is the number of elements before the first aligned boundary, `body` the number of elements in
  // whole aligned units after it.
  const int head = min(elements, -misalignment & (kAlignedElements - 1));
  const int body = store_mode == StoreMode::add_exactly ? 0 : elements - head & ~(kAlignedElements - 1);
  const bool adds = store_mode != StoreMode::store;
  if (lane == 0 && body > 0) {
    if constexpr (kAreSame<Element, float>) {
      if (adds) tma_reduce_add_1d(to + head, from + head, body * sizeof(Element));
    }
    if (!adds) tma_store_1d(to + head, from + head, body * sizeof(Element), problem.evict_first);
  }
  tma_store_commit_group();
  for (int i = lane; i < elements - body; i += 32) {
    const int at = i < head ? i : i + body;
    to[at] =
        adds ? static_cast<Element>(static_cast<float>(to[at]) + static_cast<float>(from[at])) : from[at];
  }
  // Orders the lanes' additions before later TMA reductions.
  if (store_mode == StoreMode::add_exactly) fence_proxy_async_global();
}

// Computes an image with infinities or NaN, which wgmma would multiply by zeros. Called by all consumers.
template <typename Element>
__device__ inline void compute_naive_conv(const Arguments<Element>& problem, int image, int first_filter,
                                          int filters) {
  const int count = filters * problem.output_plane;
  const int width = problem.output_width;
  for (int i = threadIdx.x - (kThreads - kConsumerThreads); i < count; i += kConsumerThreads) {
    const int filter = i / problem.output_plane;
    const int element = i - filter * problem.output_plane;
    const long long k = first_filter + filter;
    const long long plane = (static_cast<long long>(image) * problem.out_channels + k) * problem.output_plane;
    float sum = naive_conv_sum<Element, float>(problem, problem.naive_conv, image, k, 0, element / width,
                                               element % width, 0, problem.channels);
    if (problem.b != nullptr) sum += static_cast<float>(problem.b[k]);
    problem.y[plane + element] = static_cast<Element>(sum);
  }
}

}  // namespace convswap::implicit_gemm
