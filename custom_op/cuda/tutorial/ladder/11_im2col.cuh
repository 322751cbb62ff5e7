#pragma once

// Rung 11. im2col and a matrix multiply
//
// Idea: A convolution is a matrix product in disguise. Write each window of the image as a column of a
// matrix, with as many numbers as a filter has taps, and each filter as a row of another matrix. The product
// has a row for each filter and a column for each output. The first kernel writes the columns (*im2col*,
// image to columns), the second multiplies. The reward is that everybody knows how to multiply matrices. A
// block of 16×16 threads computes a tile of the result. It walks along the rows of one factor and down the
// columns of the other, and copies a tile of 16×16 numbers of both to shared memory at each step. The columns
// of all 10,000 images would take 576 MB for ece408-2017-high, and 17 GB for the course's largest layer. So
// both kernels process as many images at a time as fill 64 MB with columns: 1,165 here.
//
// Gain: Only generality: filters of any size and number, with a matrix product that could be the best there
// is. Libraries began this way for that reason.
//
// Slower: Every pixel is written once for each tap that touches it, 25 or 49 times, and read again: all the
// memory traffic that rungs 4 to 10 saved is back. And this product reads two numbers from shared memory for
// each multiplication, as rung 6 does. An array of results in each thread, as in rung 7, would help here too.
//
// Counter: `dram__bytes.sum`, the bytes moved to and from memory: more than rung 10's by the copies.
//
// No copy: it has two kernels, with scratch memory between them

#include "cpu/tutorial/ladder/convolution.h"
#include "cuda/tutorial/ladder/sizes.h"

namespace convswap::ladder {

extern __shared__ float shared[];

// A tile has kTile x kTile numbers, 16 x 16 (sizes.h).

// scratch: taps x columns, where a column is an output pixel of one of the images.
__global__ void write_columns(Convolution conv) {
  const int taps = conv.channels * conv.filter_height * conv.filter_width;
  const int outputs = conv.out_height * conv.out_width;
  const int columns = conv.batch * outputs;
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= taps * columns) return;
  const int column = i % columns, tap = i / columns;
  const int n = column / outputs, p = column % outputs / conv.out_width, q = column % conv.out_width;
  const int s = tap % conv.filter_width;
  const int r = tap / conv.filter_width % conv.filter_height;
  const int c = tap / (conv.filter_width * conv.filter_height);
  conv.scratch[i] = conv.x[((n * conv.channels + c) * conv.height + p + r) * conv.width + q + s];
}

__global__ void multiply_columns(Convolution conv) {
  const int taps = conv.channels * conv.filter_height * conv.filter_width;
  const int outputs = conv.out_height * conv.out_width;
  const int columns = conv.batch * outputs;
  float* const filter_tile = shared;                  // filters x taps
  float* const column_tile = shared + kTile * kTile;  // taps x columns
  const int k = blockIdx.y * kTile + threadIdx.y;
  const int column = blockIdx.x * kTile + threadIdx.x;

  float sum = 0.0f;
  for (int first = 0; first < taps; first += kTile) {
    const int tap_of_filter = first + threadIdx.x, tap_of_column = first + threadIdx.y;
    // Zeros past the ends of the matrices add nothing.
    const bool has_filter = k < conv.filters && tap_of_filter < taps;
    const bool has_column = column < columns && tap_of_column < taps;
    filter_tile[threadIdx.y * kTile + threadIdx.x] = has_filter ? conv.w[k * taps + tap_of_filter] : 0.0f;
    column_tile[threadIdx.y * kTile + threadIdx.x] =
        has_column ? conv.scratch[tap_of_column * columns + column] : 0.0f;
    __syncthreads();
    for (int i = 0; i < kTile; ++i) {
      sum += filter_tile[threadIdx.y * kTile + i] * column_tile[i * kTile + threadIdx.x];
    }
    __syncthreads();
  }

  if (k >= conv.filters || column >= columns) return;
  const int n = column / outputs, pixel = column % outputs;
  conv.y[(n * conv.filters + k) * outputs + pixel] = sum + conv.b[k];
}

}  // namespace convswap::ladder
