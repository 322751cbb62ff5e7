#pragma once

// The way of the results: from the sums to y, with what follows the convolution.

#include "conv/epilogue_math.h"
#include "cuda/definition.cuh"
#include "cuda/many_channels/share.cuh"
#include "cuda/tensor_core_formats.cuh"

namespace convswap::many_channels {

constexpr int kNoOutput = -1;

// Finds where the results of a warpgroup's columns lie in a plane of the tile's first image; places between
// rows and slices are no outputs.
template <typename Element>
__device__ inline void find_outputs(const Arguments<Element>& problem, const TileStart& tile,
                                    int first_column, int columns, int* outputs) {
  for (int i = threadIdx.x % 128; i < columns; i += 128) {
    const Position at = tile.position(problem, first_column + i);
    const int column = at.strip * problem.strip_columns + at.column;
    const bool exists = tile.image + at.image < problem.batch && at.row < problem.output_height &&
                        at.column < problem.strip_columns && column < problem.output_width;
    outputs[i] = exists ? at.image * problem.out_channels * problem.output_plane +
                              (at.depth * problem.output_height + at.row) * problem.output_width + column
                        : kNoOutput;
  }
}

// Called, not inlined: one for all activations but the commonest.
static __device__ __noinline__ float activated(const Epilogue& epilogue, float value) {
  return activate<float>(epilogue.activation, epilogue.alpha, epilogue.beta, value);
}

// The place of a row's results in y, and what makes them of sums.
template <typename Format>
class Row {
 public:
  using Element = typename Format::Element;

  // `row`: of those of the block; `exponent`: of the scales of the pixels and the windows of weights.
  __device__ Row(const Arguments<Element>& problem, const TileStart& tile, const Share& share, int row,
                 int exponent)
      : exists_(share.filter_block * problem.row_sets * kRows + row < problem.filters) {
    if (!exists_) return;
    const int filter = share.group * problem.filters + share.filter_block * problem.row_sets * kRows + row;
    plane_ = (tile.image * problem.out_channels + filter) * problem.output_plane;
    if (problem.b != nullptr) bias_ = Format::to_float(problem.b[filter]);
    if constexpr (Format::kIsScaled) {
      scale_ =
          PowerOfTwo(-scale_exponent(problem.filter_ranges[share.first_row(problem) + row].top) - exponent);
    }
  }

  __device__ bool exists() const { return exists_; }
  __device__ const PowerOfTwo& scale() const { return scale_; }
  __device__ float bias() const { return bias_; }
  __device__ long long plane() const { return plane_; }

 private:
  bool exists_;
  long long plane_ = 0;
  float bias_ = 0.0f;
  PowerOfTwo scale_;
};

// Calls call(t, outputs) with where the results of the thread's two columns of each tile lie.
template <int kTiles, typename Call>
__device__ inline void for_each_pair(const int* outputs, Call call) {
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
    call(t, *reinterpret_cast<const int2*>(outputs + t * kTileColumns + threadIdx.x % 4 * 2));
  }
}

// Stores what a warpgroup has summed up. Step by step, each for all sums, so that what is asked of a row is
// asked once.
template <typename Format, int kTiles, typename Element = typename Format::Element>
__device__ inline void store_results(const Arguments<Element>& problem, const TileStart& tile,
                                     const Share& share, int row_set, int exponent, const int* outputs,
                                     float (&sums)[kTiles][4]) {
  using Pair = decltype(Format::pack({0.0f, 0.0f}));
  const Epilogue& epilogue = problem.definition.epilogue;
  const int first = row_set * kRows + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const Row<Format> row(problem, tile, share, first + i * 8, exponent);
    if (!row.exists()) continue;
    const auto for_each_value = [&](auto change) {
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
#pragma unroll
        for (int j = 2 * i; j < 2 * i + 2; ++j) sums[t][j] = change(sums[t][j]);
      }
    };
    if (Format::kIsScaled && !row.scale().is_near) {
      for_each_value([&](float sum) { return sum * row.scale().rest; });
    }
    for_each_value(
        [&](float sum) { return sum * (Format::kIsScaled ? row.scale().factor : 1.0f) + row.bias(); });
    if (problem.z != nullptr) {
      const Element* const residual = problem.z + row.plane();
      for_each_pair<kTiles>(outputs, [&](int t, int2 at) {
        if (at.x >= 0) sums[t][2 * i] += Format::to_float(residual[at.x]);
        if (at.y >= 0) sums[t][2 * i + 1] += Format::to_float(residual[at.y]);
      });
    }
    if (epilogue.activation == Activation::relu) {
      for_each_value([](float value) { return value < 0 ? 0.0f : value; });
    } else if (epilogue.activation != Activation::none) {
      for_each_value([&](float value) { return activated(epilogue, value); });
    }
    Element* const to = problem.y + row.plane();
    const bool is_odd = reinterpret_cast<unsigned long long>(to) / sizeof(Element) % 2 != 0;
    for_each_pair<kTiles>(outputs, [&](int t, int2 at) {
      const float values[2] = {sums[t][2 * i], sums[t][2 * i + 1]};
      if (at.x >= 0 && at.y == at.x + 1 && (at.x % 2 != 0) == is_odd) {
        *reinterpret_cast<Pair*>(to + at.x) = Format::pack(values);
      } else {
        if (at.x >= 0) to[at.x] = static_cast<Element>(values[0]);
        if (at.y >= 0) to[at.y] = static_cast<Element>(values[1]);
      }
    });
  }
}

// A tile with infinities or NaN, or whose values span too much, by a warpgroup.
template <typename Format, typename Element = typename Format::Element>
__device__ __noinline__ void compute_as_defined(const Arguments<Element>& problem, const TileStart& tile,
                                                const Share& share, int row_set, const int* outputs,
                                                int columns) {
  const int image_size = problem.out_channels * problem.output_plane;
  for (int i = threadIdx.x % 128; i < kRows * columns; i += 128) {
    const int output = outputs[i % columns];
    const int filter = (share.filter_block * problem.row_sets + row_set) * kRows + i / columns;
    if (output == kNoOutput || filter >= problem.filters) continue;
    const int image = output / image_size, element = output - image * image_size;
    const int line = element / problem.output_width, column = element - line * problem.output_width;
    const int depth = line / problem.output_height, row = line - depth * problem.output_height;
    const long long n = tile.image + image, k = share.group * problem.filters + filter;
    problem.y[(n * problem.out_channels + k) * problem.output_plane + element] = static_cast<Element>(
        defined_value<Element, float>(problem, problem.definition, n, k, depth, row, column));
  }
}

}  // namespace convswap::many_channels
