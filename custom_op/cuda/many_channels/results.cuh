#pragma once

// The way of the results: from the sums to y, with what follows the convolution.

#include "conv/epilogue_math.h"
#include "cuda/definition.cuh"
#include "cuda/many_channels/share.cuh"
#include "cuda/tensor_core_formats.cuh"

namespace convswap::many_channels {

constexpr int kNoOutput = -1;

// Finds where the results of a warpgroup's columns lie in a plane of the tile's first image; places between
// rows and strips are no outputs.
template <typename Element>
__device__ inline void find_outputs(const Arguments<Element>& problem, const TileStart& tile,
                                    int first_column, int columns, int* outputs) {
  for (int i = threadIdx.x % 128; i < columns; i += 128) {
    const Position at = tile.position(problem, first_column + i);
    const int column = at.strip * problem.strip_columns + at.column;
    const bool exists = tile.image + at.image < problem.batch && at.row < problem.output_height &&
                        at.column < problem.strip_columns && column < problem.output_width;
    outputs[i] = exists ? at.image * problem.out_channels * problem.output_plane +
                              at.row * problem.output_width + column
                        : kNoOutput;
  }
}

// Called, not inlined: one for all activations but the commonest.
static __device__ __noinline__ float activated(const Epilogue& epilogue, float value) {
  return activate<float>(epilogue.activation, epilogue.alpha, epilogue.beta, value);
}

// A row of the product: a filter's results.
template <typename Format>
class Row {
 public:
  using Element = typename Format::Element;

  // `row` of those of the block; `exponent` of the scales of the pixels.
  __device__ Row(const Arguments<Element>& problem, const TileStart& tile, const Share& share, int row,
                 int exponent)
      : filter_(share.filter_block * problem.row_sets * kRows + row), exists_(filter_ < problem.filters) {
    if (!exists_) return;
    filter_ += share.group * problem.filters;
    plane_ = (tile.image * problem.out_channels + filter_) * problem.output_plane;
    if (problem.b != nullptr) bias_ = Format::to_float(problem.b[filter_]);
    if constexpr (Format::kIsScaled) {
      scale_ =
          PowerOfTwo(-scale_exponent(problem.filter_ranges[share.first_row(problem) + row].top) - exponent);
    }
  }

  __device__ bool exists() const { return exists_; }
  __device__ int filter() const { return filter_; }

  // Stores the results of two neighbouring columns.
  __device__ void store(const Arguments<Element>& problem, int2 outputs, float first, float second) const {
    const float values[2] = {result(problem, outputs.x, first), result(problem, outputs.y, second)};
    Element* const to = problem.y + plane_;
    const bool are_one = outputs.x >= 0 && outputs.y == outputs.x + 1 &&
                         reinterpret_cast<unsigned long long>(to + outputs.x) % (2 * sizeof(Element)) == 0;
    if (are_one) {
      const auto both = Format::pack(values);
      *reinterpret_cast<decltype(Format::pack(values))*>(to + outputs.x) = both;
    } else {
      if (outputs.x >= 0) to[outputs.x] = static_cast<Element>(values[0]);
      if (outputs.y >= 0) to[outputs.y] = static_cast<Element>(values[1]);
    }
  }

 private:
  __device__ float result(const Arguments<Element>& problem, int output, float sum) const {
    float value = sum;
    if constexpr (Format::kIsScaled) value = value * scale_.factor * scale_.rest;
    value += bias_;
    if (problem.z != nullptr && output >= 0) value += Format::to_float(problem.z[plane_ + output]);
    const Epilogue& epilogue = problem.definition.epilogue;
    if (epilogue.activation == Activation::none) return value;
    if (epilogue.activation == Activation::relu) return value < 0 ? 0.0f : value;
    return activated(epilogue, value);
  }

  int filter_;
  bool exists_;
  long long plane_ = 0;
  float bias_ = 0.0f;
  PowerOfTwo scale_;
};

// Stores what a warpgroup has summed up.
template <typename Format, int kTiles, typename Element = typename Format::Element>
__device__ inline void store_results(const Arguments<Element>& problem, const TileStart& tile,
                                     const Share& share, int row_set, int exponent, const int* outputs,
                                     const float (&sums)[kTiles][4]) {
  const int first = row_set * kRows + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const Row<Format> row(problem, tile, share, first + i * 8, exponent);
    if (!row.exists()) continue;
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      const int2 at = *reinterpret_cast<const int2*>(outputs + t * kTileColumns + threadIdx.x % 4 * 2);
      row.store(problem, at, sums[t][2 * i], sums[t][2 * i + 1]);
    }
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
    const int row = element / problem.output_width, column = element - row * problem.output_width;
    const long long n = tile.image + image, k = share.group * problem.filters + filter;
    problem.y[(n * problem.out_channels + k) * problem.output_plane + element] = static_cast<Element>(
        defined_value<Element, float>(problem, problem.definition, n, k, 0, row, column));
  }
}

}  // namespace convswap::many_channels
