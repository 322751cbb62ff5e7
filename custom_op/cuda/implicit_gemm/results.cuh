#pragma once

// The way of the results: from the sums to shared memory, where they lie as in y, band by band, and from
// there to y.

#include "cuda/implicit_gemm/arguments.h"
#include "cuda/primitives/bulk_store.cuh"
#include "cuda/primitives/shared_store.cuh"
#include "cuda/tensor_core_formats.cuh"

namespace convswap::implicit_gemm {

constexpr int kNoOutput = -1;

// Finds where the results of each column of the product lie, in bytes from those of the first filter and fold;
// kNoOutput between rows and behind the last.
template <typename Element>
__device__ inline void find_outputs(const Arguments<Element>& problem, int* outputs) {
  const int pitch = problem.pitch.divisor;
  for (int i = threadIdx.x; i < problem.output_chunks * kColumns; i += blockDim.x) {
    const int group = problem.pitch.quotient_of_any(i);
    const int column = i - group * pitch;
    const int row = group * problem.folds;
    outputs[i] = kNoOutput;
    if (column >= problem.output_width || row >= problem.output_height) continue;
    int band = 0;
    while (band + 1 < problem.bands && row >= problem.band[band + 1].first_row) ++band;
    outputs[i] = problem.band[band].begin +
                 ((row - problem.band[band].first_row) * problem.output_width + column) *
                     static_cast<int>(sizeof(Element));
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

// Finds the scales of all rows, by a team. `top`: of the window of the input; `weight_window`: the number of
// that of the weights. `are_first`: the results are the first of their image, to which the bias belongs.
// Returns whether one factor is enough for this thread's row.
template <typename Format, typename Element = typename Format::Element>
__device__ inline bool find_scales(const Arguments<Element>& problem, const int* tops, int weight_window,
                                   int top, int first_filter, int filters, bool are_first,
                                   RowScale* scales) {
  const int row = threadIdx.x % 128;
  if (row >= kRows) return true;
  RowScale scale = {1.0f, 1.0f, 0.0f, -1};
  bool is_near = true;
  const RowOwner owner = problem.rows[row];
  if (owner.filter >= 0 && owner.filter < filters) {
    scale.offset = (owner.filter * problem.band_plane + owner.fold * problem.output_width) *
                   static_cast<int>(sizeof(Element));
    if (problem.b != nullptr && are_first) {
      scale.bias = Format::to_float(problem.b[first_filter + owner.filter]);
    }
    if constexpr (Format::kIsScaled) {
      const int exponent =
          -scale_exponent(tops[owner.filter] - weight_window * kBinades) - scale_exponent(top);
      const int within_float = max(-126, min(127, exponent));
      scale.factor = power_of_two(within_float);
      scale.rest = power_of_two(max(-126, min(127, exponent - within_float)));
      is_near = exponent == within_float;
    }
  }
  scales[row] = scale;
  return is_near;
}

// How a thread writes the sums of kColumns columns. What the first need is fetched while they are still being
// computed.
class Writing {
 public:
  // `scales`: of all rows; `outputs`: of these columns.
  __device__ Writing(const RowScale* scales, const int* outputs)
      : pairs_(reinterpret_cast<const int2*>(outputs) + threadIdx.x % 4) {
    const int row = threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
    scales_[0] = scales[row];
    scales_[1] = scales[row + 8];
    fetch(0);
  }

  template <typename Format>
  __device__ void write(SharedAddress results, bool is_far, float (&sums)[kTiles][4]) {
    if (Format::kIsScaled && is_far) {
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
#pragma unroll
        for (int i = 0; i < 4; ++i) sums[t][i] *= scales_[i / 2].rest;
      }
    }
    const SharedAddress rows[] = {results + scales_[0].offset, results + scales_[1].offset};
    const bool are_rows[] = {scales_[0].offset >= 0, scales_[1].offset >= 0};
#pragma unroll
    for (int first = 0; first < kTiles; first += kAtOnce) {
      if (first > 0) fetch(first);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (!are_rows[i]) continue;
        const auto store = [&](int place, float sum) {
          if (place == kNoOutput) return;
          const float result[] = {sum * scales_[i].factor + scales_[i].bias};
          store_at(rows[i] + place, Format::pack(result));
        };
#pragma unroll
        for (int t = 0; t < kAtOnce; ++t) {
          store(places_[t].x, sums[first + t][2 * i]);
          store(places_[t].y, sums[first + t][2 * i + 1]);
        }
      }
    }
  }

 private:
  static constexpr int kAtOnce = 4;  // tiles

  __device__ void fetch(int first) {
#pragma unroll
    for (int t = 0; t < kAtOnce; ++t) places_[t] = pairs_[4 * (first + t)];
  }

  const int2* pairs_;
  RowScale scales_[2];
  int2 places_[kAtOnce];
};

// Stores a band of an image to y, or adds it to what is there, a filter to a lane.
template <typename Element>
__device__ inline void store_band(const Arguments<Element>& problem, const Band& band, int image,
                                  int first_filter, int filters, bool adds, const unsigned char* results) {
  constexpr int kOfAlignment = kAlignment / sizeof(Element);
  const int elements = band.rows * problem.output_width;
  const Element* const first = reinterpret_cast<const Element*>(results + band.begin) +
                               results_beyond(problem, image, first_filter);
  for (int filter = threadIdx.x % 32; filter < filters; filter += 32) {
    const long long begin = (static_cast<long long>(image) * problem.out_channels + first_filter + filter) *
                                problem.output_plane +
                            band.first_row * problem.output_width;
    const Element* const from = first + filter * problem.band_plane;
    Element* const to = problem.y + begin;
    // Before the first boundary, and whole chunks from there on.
    const int head =
        min(elements, -static_cast<int>(begin + problem.y_misalignment) & (kOfAlignment - 1));
    const int body = elements - head & ~(kOfAlignment - 1);
    if (body > 0) {
      if constexpr (std::is_same_v<Element, float>) {
        if (adds) bulk_add(to + head, from + head, body * sizeof(Element));
      }
      if (!adds) bulk_store(to + head, from + head, body * sizeof(Element), problem.leaves_first);
    }
    for (int i = 0; i < elements - body; ++i) {
      const int at = i < head ? i : i + body;
      to[at] = adds ? static_cast<Element>(static_cast<float>(to[at]) + static_cast<float>(from[at]))
                    : from[at];
    }
  }
  commit_bulk_stores();
}

// An image with infinities or NaN, which the tensor core would multiply with zeros: by all who multiply.
template <typename Element>
__device__ inline void compute_as_defined(const Arguments<Element>& problem, int image,
                                                int first_filter, int filters) {
  const int count = filters * problem.output_plane;
  const int width = problem.output_width;
  for (int i = threadIdx.x - (kThreads - kMultipliers); i < count; i += kMultipliers) {
    const int filter = i / problem.output_plane;
    const int element = i - filter * problem.output_plane;
    const long long k = first_filter + filter;
    const long long plane = (static_cast<long long>(image) * problem.out_channels + k) * problem.output_plane;
    problem.y[plane + element] = static_cast<Element>(naive_result<Element, float>(
        problem.definition, image, k, 0, element / width, element % width));
  }
}

}  // namespace convswap::implicit_gemm
