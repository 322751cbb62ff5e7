#pragma once

// The way of the results: from the sums to shared memory, where they lie as in y, and from there to y.

#include "conv/host_device.h"
#include "cuda/implicit_gemm/arguments.h"
#include "cuda/primitives/naive_conv.cuh"
#include "cuda/primitives/shared_memory.cuh"
#include "cuda/primitives/tensor_core_formats.cuh"
#include "cuda/primitives/tma.cuh"

namespace convswap::implicit_gemm {

// Finds where the results of each column of the product lie, in bytes from those of the first filter and
// fold; columns between rows and behind the last are no outputs.
template <int kColumns, typename Element>
__device__ inline void find_outputs(const Arguments<Element>& problem, int* outputs) {
  const int pitch = problem.pitch.divisor;
  for (int i = threadIdx.x; i < problem.output_chunks * kColumns; i += blockDim.x) {
    const int group = problem.pitch.quotient_of_any(i);
    const int column = i - group * pitch;
    const int row = group * problem.folds;
    int place = kNoOutput;
    if (column < problem.output_width && row < problem.output_height) {
      place = (row * problem.output_width + column) * static_cast<int>(sizeof(Element));
    }
    const int thread = i % 8 / 2, tile = i % kColumns / kTileColumns;
    outputs[i / kColumns * kOutputsOfChunk + thread * kOutputsOfThread + 2 * tile + i % 2] = place;
  }
}

// How far the first result of a block's filters lies from a boundary in y, and so all of them where they
// wait, in elements.
template <typename Element>
__device__ inline int results_beyond(const Arguments<Element>& problem, int image, int first_filter) {
  const long long plane = static_cast<long long>(image) * problem.out_channels + first_filter;
  return static_cast<int>((plane * problem.output_plane + problem.y_misalignment) &
                          (kAlignment / sizeof(Element) - 1));
}

// Finds the scales of all rows, by a warpgroup. `top`: of the window of the input; `weight_window`: the
// number of that of the weights. `are_first`: the results are the first of their image, to which the bias
// belongs. Returns whether one factor is enough for this thread's row.
template <typename Format, typename Element = typename Format::Element>
__device__ inline bool find_scales(const Arguments<Element>& problem, const int* tops, int weight_window,
                                   int top, int first_filter, int filters, bool are_first, RowScale* scales) {
  const int row = threadIdx.x % 128;
  if (row >= kRows) return true;
  RowScale scale = {1.0f, 1.0f, 0.0f, 0, {-1, -1}};
  bool is_near = true;
  const RowOwner owner = problem.rows[row];
  if (owner.filter >= 0 && owner.filter < filters) {
    const int offset = (owner.filter * problem.output_plane + owner.fold * problem.output_width) *
                       static_cast<int>(sizeof(Element));
    const bool is_late = owner.filter >= filters - problem.late_filters;
    scale.offsets[0] = offset + (is_late ? kLateGap : 0);
    scale.offsets[1] = scale.offsets[0] + (is_late ? problem.late_bytes : 0);
    scale.end =
        (problem.output_plane - owner.fold * problem.output_width) * static_cast<int>(sizeof(Element));
    if (problem.b != nullptr && are_first) {
      scale.bias = Format::to_float(problem.b[first_filter + owner.filter]);
    }
    if constexpr (Format::kIsScaled) {
      const PowerOfTwo undone = undo_scales(tops[owner.filter] - weight_window * kBinades, top);
      scale.factor = undone.factor, scale.rest = undone.rest;
      is_near = undone.is_near;
    }
  }
  scales[row] = scale;
  return is_near;
}

// How a thread writes the sums of kTiles tiles. What the first need is fetched while they are still being
// computed.
template <int kTiles>
class Writing {
 public:
  // `scales`: of all rows; `outputs`: of these columns; `place`: of the late filters' results.
  __device__ Writing(const RowScale* scales, const int* outputs, int place)
      : outputs_(reinterpret_cast<const int4*>(outputs + threadIdx.x % 4 * kOutputsOfThread)) {
    const int row = threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const RowScale& scale = scales[row + 8 * i];
      factors_[i] = scale.factor, rests_[i] = scale.rest, biases_[i] = scale.bias;
      ends_[i] = scale.end, offsets_[i] = scale.offsets[place];
    }
    fetch(0);
  }

  // `unread`: of this thread, behind all results.
  template <typename Format>
  __device__ void write(SharedAddress results, SharedAddress unread, bool is_far, bool is_ragged,
                        bool writes_pairs, float (&accumulators)[kTiles][4]) {
    if (Format::kIsScaled && is_far) {
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
#pragma unroll
        for (int i = 0; i < 4; ++i) accumulators[t][i] *= rests_[i / 2];
      }
    }
    if (writes_pairs) {
      write_as<Format, true, true>(results, unread, accumulators);
    } else if (is_ragged) {
      write_as<Format, true, false>(results, unread, accumulators);
    } else {
      write_as<Format, false, false>(results, unread, accumulators);
    }
  }

 private:
  static constexpr int kAtOnce = 4;  // tiles

  // kIsRagged: some columns may be of the last rows, of which not all folds have one. kPairs: neighbouring
  // results are both outputs or none, and aligned as one.
  template <typename Format, bool kIsRagged, bool kPairs>
  __device__ void write_as(SharedAddress results, SharedAddress unread,
                           const float (&accumulators)[kTiles][4]) {
#pragma unroll
    for (int first = 0; first < kTiles; first += kAtOnce) {
      if (first > 0) fetch(first);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (offsets_[i] < 0) continue;
        const SharedAddress row = results + offsets_[i];
        const auto address_of = [&](int place) {
          return min(row + (kIsRagged && place >= ends_[i] ? kNoOutput : place), unread);
        };
        const auto result_of = [&](float sum) { return sum * factors_[i] + biases_[i]; };
#pragma unroll
        for (int t = 0; t < kAtOnce && first + t < kTiles; ++t) {
          const int4 places = places_[t / 2];
          const int place[] = {t % 2 == 0 ? places.x : places.z, t % 2 == 0 ? places.y : places.w};
          const float results[] = {result_of(accumulators[first + t][2 * i]),
                                   result_of(accumulators[first + t][2 * i + 1])};
          if constexpr (kPairs) {
            store_shared_at(address_of(place[0]), Format::pack(results));
          } else {
#pragma unroll
            for (int j = 0; j < 2; ++j) {
              const float result[] = {results[j]};
              store_shared_at(address_of(place[j]), Format::pack(result));
            }
          }
        }
      }
    }
  }

  __device__ void fetch(int first) {
#pragma unroll
    for (int t = 0; t < kAtOnce; t += 2) places_[t / 2] = outputs_[(first + t) / 2];
  }

  const int4* outputs_;
  // Of the thread's two rows.
  float factors_[2], rests_[2], biases_[2];
  int offsets_[2], ends_[2];
  int4 places_[kAtOnce / 2];
};

// How an image's results reach y.
enum class Storing { store, add, add_exactly };

// Stores the results of some of a block's filters to y, or adds them to what is there: one warp. They follow
// each other there; what copies cannot move, at most seven elements at each end, the lanes store themselves,
// and all that is to be added exactly. `results`: where those of the first of all filters would lie.
template <typename Element>
__device__ inline void store_results(const Arguments<Element>& problem, int image, int first_filter,
                                     int begin_filter, int end_filter, Storing storing,
                                     const unsigned char* results) {
  constexpr int kOfAlignment = kAlignment / sizeof(Element);
  const int lane = threadIdx.x % 32;
  const int begin = begin_filter * problem.output_plane;
  const int elements = end_filter * problem.output_plane - begin;
  const int beyond = results_beyond(problem, image, first_filter) + begin;
  const Element* const from = reinterpret_cast<const Element*>(results) + beyond;
  Element* const to =
      problem.y + begin +
      (static_cast<long long>(image) * problem.out_channels + first_filter) * problem.output_plane;
  // Before the first boundary, and whole chunks from there on.
  const int head = min(elements, -beyond & (kOfAlignment - 1));
  const int body = storing == Storing::add_exactly ? 0 : elements - head & ~(kOfAlignment - 1);
  const bool adds = storing != Storing::store;
  if (lane == 0 && body > 0) {
    if constexpr (kAreSame<Element, float>) {
      if (adds) tma_reduce_add_1d(to + head, from + head, body * sizeof(Element));
    }
    if (!adds) tma_store_1d(to + head, from + head, body * sizeof(Element), problem.leaves_first);
  }
  tma_store_commit_group();
  for (int i = lane; i < elements - body; i += 32) {
    const int at = i < head ? i : i + body;
    to[at] =
        adds ? static_cast<Element>(static_cast<float>(to[at]) + static_cast<float>(from[at])) : from[at];
  }
  // Copies that add may come next.
  if (storing == Storing::add_exactly) fence_proxy_async_global();
}

// An image with infinities or NaN, which the tensor core would multiply with zeros: by all consumers.
template <typename Element>
__device__ inline void compute_as_defined(const Arguments<Element>& problem, int image, int first_filter,
                                          int filters) {
  const int count = filters * problem.output_plane;
  const int width = problem.output_width;
  for (int i = threadIdx.x - (kThreads - kConsumers); i < count; i += kConsumers) {
    const int filter = i / problem.output_plane;
    const int element = i - filter * problem.output_plane;
    const long long k = first_filter + filter;
    const long long plane = (static_cast<long long>(image) * problem.out_channels + k) * problem.output_plane;
    float sum = naive_conv_sum<Element, float>(problem, problem.definition, image, k, 0, element / width,
                                               element % width, 0, problem.channels);
    if (problem.b != nullptr) sum += static_cast<float>(problem.b[k]);
    problem.y[plane + element] = static_cast<Element>(sum);
  }
}

}  // namespace convswap::implicit_gemm
