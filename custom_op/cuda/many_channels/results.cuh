#pragma once

// The way of the results: from the sums to y, with what follows the convolution.

#include "conv/epilogue_math.h"
#include "cuda/definition.cuh"
#include "cuda/many_channels/share.cuh"
#include "cuda/primitives/registers.cuh"
#include "cuda/tensor_core_formats.cuh"

namespace convswap::many_channels {

constexpr int kNoOutput = -1;

// Finds where the results of a tile's columns lie in a plane of its first image; places between rows and
// slices are no outputs. By all converters.
template <typename Element>
__device__ inline void find_outputs(const Arguments<Element>& problem, const TileStart& tile, int* outputs) {
  for (int i = threadIdx.x; i < problem.columns; i += kConverters) {
    const Position at = tile.position(problem, i);
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

// What makes results of a row's sums.
template <typename Format>
struct Row {
  PowerOfTwo scale;
  float bias = 0.0f;

  // `row`: of those of the block; `exponent`: of the scales of the pixels and the windows of weights.
  template <typename Element>
  __device__ Row(const Arguments<Element>& problem, const Head& head, int row, int exponent) {
    const int of_group = head.filter_block * problem.row_sets * kRows + row;
    if (of_group >= problem.filters) return;
    if (problem.b != nullptr) bias = Format::to_float(problem.b[head.group * problem.filters + of_group]);
    if constexpr (Format::kIsScaled) {
      scale = PowerOfTwo(-scale_exponent(problem.filter_ranges[head.first_row + row].top) - exponent);
    }
  }
};

// Stores the results of a column from `at` on, a plane for each of its 16 rows, of which the first `rows` are
// filters. kRowsAtOnce: as many residuals are loaded before anything is stored, which the compiler does not
// know to lie elsewhere.
template <typename Format, int kRowsAtOnce, typename Activate, typename Element = typename Format::Element>
__device__ inline void store_column(const Arguments<Element>& problem, long long at, int rows,
                                    const float* staged, Activate activate) {
  const unsigned plane_bytes = problem.output_plane * static_cast<unsigned>(sizeof(Element));
  const char* residual = reinterpret_cast<const char*>(problem.z + at);
  char* to = reinterpret_cast<char*>(problem.y + at);
#pragma unroll 1
  for (int first = 0; first < 16; first += kRowsAtOnce) {
    float values[kRowsAtOnce];
#pragma unroll
    for (int i = 0; i < kRowsAtOnce; ++i) values[i] = staged[(first + i) * kStagedPitch];
    if (problem.z != nullptr) {
#pragma unroll
      for (int i = 0; i < kRowsAtOnce; ++i) {
        residual = global_computed_here(residual);
        if (first + i < rows) values[i] += Format::to_float(*reinterpret_cast<const Element*>(residual));
        residual += plane_bytes;
      }
    }
#pragma unroll
    for (int i = 0; i < kRowsAtOnce; ++i) {
      to = global_computed_here(to);
      if (first + i < rows) *reinterpret_cast<Element*>(to) = static_cast<Element>(activate(values[i]));
      to += plane_bytes;
    }
  }
}

// Stores what a warpgroup has summed up. Scales and bias are of a thread's two rows; all else is done where
// neighbouring lanes have neighbouring columns, which is how memory takes them best: part after part the
// results of a warp pass through `staged`, its part of shared memory.
template <typename Format, int kTiles, typename Element = typename Format::Element>
__device__ inline void store_results(const Arguments<Element>& problem, const Head& head, int row_set,
                                     int exponent, const int* outputs, float (&sums)[kTiles][4],
                                     float* staged) {
  constexpr int kTilesAtOnce = kStagedColumns / kTileColumns;
  const int lane = threadIdx.x % 32;
  const int first_row = row_set * kRows + threadIdx.x % 128 / 32 * 16;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const Row<Format> row(problem, head, first_row + lane / 4 + i * 8, exponent);
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int j = 2 * i; j < 2 * i + 2; ++j) {
        if (Format::kIsScaled && !row.scale.is_near) sums[t][j] *= row.scale.rest;
        sums[t][j] = sums[t][j] * (Format::kIsScaled ? row.scale.factor : 1.0f) + row.bias;
      }
    }
  }
  const Epilogue& epilogue = problem.definition.epilogue;
  // The commonest activations in one way: nothing is below the floor of none.
  const bool is_floored = epilogue.activation == Activation::none || epilogue.activation == Activation::relu;
  const float floor = epilogue.activation == Activation::relu ? 0.0f : -__int_as_float(0x7f800000);
  const int first_filter = head.filter_block * problem.row_sets * kRows + first_row;
  const int rows = problem.filters - first_filter;
  const long long plane = (head.image * problem.out_channels + head.group * problem.filters + first_filter) *
                          problem.output_plane;
#pragma unroll
  for (int first = 0; first < kTiles; first += kTilesAtOnce) {
    __syncwarp();
#pragma unroll
    for (int t = 0; t < kTilesAtOnce && first + t < kTiles; ++t) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float pair[2] = {sums[first + t][2 * i], sums[first + t][2 * i + 1]};
        *reinterpret_cast<uint2*>(staged + (lane / 4 + i * 8) * kStagedPitch + t * kTileColumns +
                                  lane % 4 * 2) = Float32Elements::pack(pair);
      }
    }
    __syncwarp();
    const int column = first * kTileColumns + lane;
    const int output = column < kTiles * kTileColumns ? outputs[column] : kNoOutput;
    if (output == kNoOutput) continue;
    const long long at = plane + output;
    if (is_floored) {
      store_column<Format, 16>(problem, at, rows, staged + lane,
                               [=](float value) { return value < floor ? floor : value; });
    } else {
      store_column<Format, 1>(problem, at, rows, staged + lane,
                              [&](float value) { return activated(epilogue, value); });
    }
  }
}

// A tile with infinities or NaN, or whose values span too much, by a warpgroup.
template <typename Format, typename Element = typename Format::Element>
__device__ __noinline__ void compute_as_defined(const Arguments<Element>& problem, const Head& head,
                                                int row_set, const int* outputs, int columns) {
  const int image_size = problem.out_channels * problem.output_plane;
  for (int i = threadIdx.x % 128; i < kRows * columns; i += 128) {
    const int output = outputs[i % columns];
    const int filter = (head.filter_block * problem.row_sets + row_set) * kRows + i / columns;
    if (output == kNoOutput || filter >= problem.filters) continue;
    const int image = output / image_size, element = output - image * image_size;
    const int line = element / problem.output_width, column = element - line * problem.output_width;
    const int depth = line / problem.output_height, row = line - depth * problem.output_height;
    const long long n = head.image + image, k = head.group * problem.filters + filter;
    problem.y[(n * problem.out_channels + k) * problem.output_plane + element] = static_cast<Element>(
        defined_value<Element, float>(problem, problem.definition, n, k, depth, row, column));
  }
}

}  // namespace convswap::many_channels
