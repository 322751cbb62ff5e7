#pragma once

// Rung 12. im2col without the columns
//
// Idea: The matrix of columns need not exist. When the product of rung 11 needs a tile of it, its threads
// compute which pixel of which image each number would be a copy of, and read that pixel directly. There is
// one kernel, no scratch memory, and the batch in one piece. Today's libraries do the same and call it
// *implicit GEMM*.
//
// Gain: The columns are neither written nor read. Each image is read from memory once, and further reads hit
// the caches.
//
// Slower: A number of a column costs its divisions each time that a block reads it, and blocks of different
// filters read the same columns. Rung 11 divides once and then copies.
//
// Counter: `dram__bytes.sum`, the bytes moved to and from memory: back to about the bytes of images and
// results.
//
// Launch: grid(ceil_div(B * H_out * W_out, 16), ceil_div(M, 16)) block(16, 16) shared(2 * 4 * 16 * 16)
//
// Constants: kFusedTile = 16

#include "cpu/tutorial/ladder/convolution.h"
#include "cuda/tutorial/ladder/sizes.h"

namespace convswap::ladder {

extern __shared__ float shared[];

// A tile has kFusedTile x kFusedTile numbers, 16 x 16 (sizes.h).

__global__ void fused_im2col(Convolution conv) {
  const int taps = conv.channels * conv.filter_height * conv.filter_width;
  const int outputs = conv.out_height * conv.out_width;
  const int columns = conv.batch * outputs;
  float* const filter_tile = shared;                            // filters x taps
  float* const column_tile = shared + kFusedTile * kFusedTile;  // taps x columns
  const int k = blockIdx.y * kFusedTile + threadIdx.y;
  const int matrix_column = blockIdx.x * kFusedTile + threadIdx.x;
  const int n = matrix_column / outputs, p = matrix_column % outputs / conv.out_width,
            q = matrix_column % conv.out_width;

  float sum = 0.0f;
  for (int first = 0; first < taps; first += kFusedTile) {
    const int tap_of_filter = first + threadIdx.x, tap_of_column = first + threadIdx.y;
    const int s = tap_of_column % conv.filter_width;
    const int r = tap_of_column / conv.filter_width % conv.filter_height;
    const int c = tap_of_column / (conv.filter_width * conv.filter_height);
    const bool has_filter = k < conv.filters && tap_of_filter < taps;
    const bool has_column = matrix_column < columns && tap_of_column < taps;
    filter_tile[threadIdx.y * kFusedTile + threadIdx.x] =
        has_filter ? conv.w[k * taps + tap_of_filter] : 0.0f;
    column_tile[threadIdx.y * kFusedTile + threadIdx.x] =
        has_column ? conv.x[((n * conv.channels + c) * conv.height + p + r) * conv.width + q + s] : 0.0f;
    __syncthreads();
    for (int i = 0; i < kFusedTile; ++i) {
      sum += filter_tile[threadIdx.y * kFusedTile + i] * column_tile[i * kFusedTile + threadIdx.x];
    }
    __syncthreads();
  }

  if (k >= conv.filters || matrix_column >= columns) return;
  conv.y[(n * conv.filters + k) * outputs + matrix_column % outputs] = sum + conv.b[k];
}

}  // namespace convswap::ladder
