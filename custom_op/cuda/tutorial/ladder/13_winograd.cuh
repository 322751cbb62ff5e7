#pragma once

// Rung 13. Winograd's short convolutions
//
// Idea: Two polynomials can be multiplied by evaluating both at a few points, multiplying the values, and
// interpolating: one multiplication for each point instead of one for each pair of coefficients. Two numbers
// times a filter of five is such a product. It has six coefficients, so it takes six points. A convolution is
// the transposed problem: six numbers of the image go in, and two outputs come out. The transposed steps in
// reverse order compute it, again with six multiplications instead of 10. A tile of 2×2 outputs of a 5×5
// filter takes 36 multiplications instead of 100, and of a 7×7 filter 64 instead of 196. (The points are 0,
// 1, -1, 2, -2 and infinity, which stands for the highest coefficient; for 7×7 also 1/2 and -1/2. S.
// Winograd, *Arithmetic Complexity of Computations*, 1980; A. Lavin and S. Gray, *Fast Algorithms for
// Convolutional Neural Networks*, 2016.) A first kernel transforms all filters once. In the second kernel, a
// block transforms the 6×6 or 8×8 windows of 16 tiles, multiplies them by the filters point by point, sums
// over the channels, and transforms the sums to the four outputs of each tile.
//
// Tiles of 2×2 are the smallest. Larger tiles would save more multiplications and round worse, since points
// like 4 or 1/4 lead to powers that float32 cannot add without loss. As it is, the relative L2 error is about
// six times that of the other rungs in float32: 2.3e-7 against 4.0e-8 for ece408-2017-high.
//
// Gain: 2.8 times fewer multiplications for 5×5, 3.1 times for 7×7.
//
// Slower: Multiplications are not the bottleneck of these layers. To transform a window pays if there are
// many filters to use it, and to transform the sums pays if many channels are summed before. The first layer
// of every course network has one channel, so there is nothing to sum. And each product takes two numbers
// from memory: one from shared memory, and one from global memory through the caches.
//
// Counter: `smsp__sass_thread_inst_executed_op_ffma_pred_on.sum`, the fused multiply-adds: fewer; and
// `smsp__sass_thread_inst_executed_op_fadd_pred_on.sum`, the additions alone: more.
//
// No copy: it has two kernels, with scratch memory between them

#include "cpu/tutorial/ladder/convolution.h"
#include "cuda/tutorial/ladder/sizes.h"

namespace convswap::ladder {

extern __shared__ float shared[];

// A block has kWinogradTiles = 16 tiles of kTileOutputs x kTileOutputs = 2 x 2 outputs, and
// kWinogradThreads = 256 threads, which share the filters (sizes.h).

// The matrices of the three transforms, for filters of 5x5 (6 points) and of 7x7 (8 points). The filter
// transform evaluates the filter at the points, and divides by a constant of each point. The input transform
// is the transposed interpolation. The output transform is the transposed evaluation, applied to the sums of
// the products.
struct FilterTransform5 {
  __device__ static constexpr float at(int row, int column) {
    constexpr float kMatrix[6][5] = {{1.0f / 4, 0, 0, 0, 0},
                                     {-1.0f / 6, -1.0f / 6, -1.0f / 6, -1.0f / 6, -1.0f / 6},
                                     {-1.0f / 6, 1.0f / 6, -1.0f / 6, 1.0f / 6, -1.0f / 6},
                                     {1.0f / 24, 1.0f / 12, 1.0f / 6, 1.0f / 3, 2.0f / 3},
                                     {1.0f / 24, -1.0f / 12, 1.0f / 6, -1.0f / 3, 2.0f / 3},
                                     {0, 0, 0, 0, 1}};
    return kMatrix[row][column];
  }
};

struct InputTransform5 {
  __device__ static constexpr float at(int row, int column) {
    constexpr float kMatrix[6][6] = {{4, 0, -5, 0, 1, 0},  {0, -4, -4, 1, 1, 0}, {0, 4, -4, -1, 1, 0},
                                     {0, -2, -1, 2, 1, 0}, {0, 2, -1, -2, 1, 0}, {0, 4, 0, -5, 0, 1}};
    return kMatrix[row][column];
  }
};

struct OutputTransform5 {
  __device__ static constexpr float at(int row, int column) {
    constexpr float kMatrix[2][6] = {{1, 1, 1, 1, 1, 0}, {0, 1, -1, 2, -2, 1}};
    return kMatrix[row][column];
  }
};

struct FilterTransform7 {
  __device__ static constexpr float at(int row, int column) {
    constexpr float kMatrix[8][7] = {
        {-1.0f / 4, 0, 0, 0, 0, 0, 0},
        {-1.0f / 18, -1.0f / 18, -1.0f / 18, -1.0f / 18, -1.0f / 18, -1.0f / 18, -1.0f / 18},
        {-1.0f / 18, 1.0f / 18, -1.0f / 18, 1.0f / 18, -1.0f / 18, 1.0f / 18, -1.0f / 18},
        {1.0f / 360, 1.0f / 180, 1.0f / 90, 1.0f / 45, 2.0f / 45, 4.0f / 45, 8.0f / 45},
        {1.0f / 360, -1.0f / 180, 1.0f / 90, -1.0f / 45, 2.0f / 45, -4.0f / 45, 8.0f / 45},
        {16.0f / 45, 8.0f / 45, 4.0f / 45, 2.0f / 45, 1.0f / 45, 1.0f / 90, 1.0f / 180},
        {16.0f / 45, -8.0f / 45, 4.0f / 45, -2.0f / 45, 1.0f / 45, -1.0f / 90, 1.0f / 180},
        {0, 0, 0, 0, 0, 0, 1.0f / 4}};
    return kMatrix[row][column];
  }
};

struct InputTransform7 {
  __device__ static constexpr float at(int row, int column) {
    constexpr float kMatrix[8][8] = {{-4, 0, 21, 0, -21, 0, 4, 0},  {0, 4, 4, -17, -17, 4, 4, 0},
                                     {0, -4, 4, 17, -17, -4, 4, 0}, {0, 2, 1, -10, -5, 8, 4, 0},
                                     {0, -2, 1, 10, -5, -8, 4, 0},  {0, 4, 8, -5, -10, 1, 2, 0},
                                     {0, -4, 8, 5, -10, -1, 2, 0},  {0, -4, 0, 21, 0, -21, 0, 4}};
    return kMatrix[row][column];
  }
};

struct OutputTransform7 {
  __device__ static constexpr float at(int row, int column) {
    constexpr float kMatrix[2][8] = {{1, 1, 1, 1, 1, 1, 1, 0}, {0, 1, -1, 2, -2, 1.0f / 2, -1.0f / 2, 1}};
    return kMatrix[row][column];
  }
};

// The matrices for filters of kFilterSize x kFilterSize, 5 or 7.
template <int kFilterSize>
struct TransformMatrices;

template <>
struct TransformMatrices<5> {
  static constexpr int kCount = 6;
  using FilterTransform = FilterTransform5;
  using InputTransform = InputTransform5;
  using OutputTransform = OutputTransform5;
};

template <>
struct TransformMatrices<7> {
  static constexpr int kCount = 8;
  using FilterTransform = FilterTransform7;
  using InputTransform = InputTransform7;
  using OutputTransform = OutputTransform7;
};

// result = matrix * square * transposed matrix: first along the columns, then along the rows.
template <typename Matrix, int kRows, int kColumns>
__device__ inline void transform(const float (&square)[kColumns][kColumns], float (&result)[kRows][kRows]) {
  float half[kRows][kColumns];
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
#pragma unroll
    for (int j = 0; j < kColumns; ++j) {
      half[i][j] = 0.0f;
#pragma unroll
      for (int m = 0; m < kColumns; ++m) {
        if (Matrix::at(i, m) != 0.0f) half[i][j] += Matrix::at(i, m) * square[m][j];
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
#pragma unroll
    for (int j = 0; j < kRows; ++j) {
      result[i][j] = 0.0f;
#pragma unroll
      for (int m = 0; m < kColumns; ++m) {
        if (Matrix::at(j, m) != 0.0f) result[i][j] += half[i][m] * Matrix::at(j, m);
      }
    }
  }
}

// scratch: channels x points x points x filters.
template <int kFilterSize>
__global__ void evaluate_filters(Convolution conv) {
  constexpr int kPoints = TransformMatrices<kFilterSize>::kCount;
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= conv.filters * conv.channels) return;
  const int c = i / conv.filters, k = i % conv.filters;
  float filter[kFilterSize][kFilterSize], values[kPoints][kPoints];
#pragma unroll
  for (int r = 0; r < kFilterSize; ++r) {
#pragma unroll
    for (int s = 0; s < kFilterSize; ++s) {
      filter[r][s] = conv.w[((k * conv.channels + c) * kFilterSize + r) * kFilterSize + s];
    }
  }
  transform<typename TransformMatrices<kFilterSize>::FilterTransform>(filter, values);
#pragma unroll
  for (int point = 0; point < kPoints * kPoints; ++point) {
    conv.scratch[(c * kPoints * kPoints + point) * conv.filters + k] =
        values[point / kPoints][point % kPoints];
  }
}

template <int kFilterSize>
__global__ void __launch_bounds__(kWinogradThreads) winograd(Convolution conv) {
  constexpr int kPoints = TransformMatrices<kFilterSize>::kCount;
  const int tile_rows = (conv.out_height + 1) / kTileOutputs;
  const int tile_columns = (conv.out_width + 1) / kTileOutputs;
  const int tiles = conv.batch * tile_rows * tile_columns;
  float* const windows = shared;  // channels x points x points x kWinogradTiles

  for (int i = threadIdx.x; i < conv.channels * kWinogradTiles; i += kWinogradThreads) {
    const int c = i / kWinogradTiles, tile = blockIdx.x * kWinogradTiles + i % kWinogradTiles;
    if (tile >= tiles) continue;
    const int n = tile / (tile_rows * tile_columns);
    const int h = tile / tile_columns % tile_rows * kTileOutputs, w = tile % tile_columns * kTileOutputs;
    float window[kPoints][kPoints], values[kPoints][kPoints];
#pragma unroll
    for (int row = 0; row < kPoints; ++row) {
#pragma unroll
      for (int column = 0; column < kPoints; ++column) {
        // The last tile of a row or column may extend past the image.
        const bool is_inside = h + row < conv.height && w + column < conv.width;
        window[row][column] =
            is_inside ? conv.x[((n * conv.channels + c) * conv.height + h + row) * conv.width + w + column]
                      : 0.0f;
      }
    }
    transform<typename TransformMatrices<kFilterSize>::InputTransform>(window, values);
#pragma unroll
    for (int point = 0; point < kPoints * kPoints; ++point) {
      windows[(c * kPoints * kPoints + point) * kWinogradTiles + i % kWinogradTiles] =
          values[point / kPoints][point % kPoints];
    }
  }
  __syncthreads();

  const int tile_in_block = threadIdx.x % kWinogradTiles, tile = blockIdx.x * kWinogradTiles + tile_in_block;
  if (tile >= tiles) return;
  const int n = tile / (tile_rows * tile_columns);
  const int p = tile / tile_columns % tile_rows * kTileOutputs, q = tile % tile_columns * kTileOutputs;
  for (int k = threadIdx.x / kWinogradTiles; k < conv.filters; k += kWinogradThreads / kWinogradTiles) {
    float products[kPoints][kPoints] = {}, results[kTileOutputs][kTileOutputs];
    for (int c = 0; c < conv.channels; ++c) {
#pragma unroll
      for (int point = 0; point < kPoints * kPoints; ++point) {
        products[point / kPoints][point % kPoints] +=
            windows[(c * kPoints * kPoints + point) * kWinogradTiles + tile_in_block] *
            conv.scratch[(c * kPoints * kPoints + point) * conv.filters + k];
      }
    }
    transform<typename TransformMatrices<kFilterSize>::OutputTransform>(products, results);
    const float bias = conv.b[k];
#pragma unroll
    for (int row = 0; row < kTileOutputs; ++row) {
#pragma unroll
      for (int column = 0; column < kTileOutputs; ++column) {
        if (p + row >= conv.out_height || q + column >= conv.out_width) continue;
        conv.y[((n * conv.filters + k) * conv.out_height + p + row) * conv.out_width + q + column] =
            results[row][column] + bias;
      }
    }
  }
}

}  // namespace convswap::ladder
