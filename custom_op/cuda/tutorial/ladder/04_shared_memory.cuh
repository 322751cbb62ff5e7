#pragma once

// Rung 4. Image and filter in shared memory
//
// Idea: Neighbouring outputs read nearly the same window of the image: with a 5×5 filter, every pixel is read
// 25 times for each filter. The GPU consists of *multiprocessors* (132 on an H200), each with its own cores,
// registers and small fast memory. A block runs on one multiprocessor from beginning to end. Its threads
// share a part of that fast memory, the *shared memory*, which the program itself fills. So a block takes one
// image and one filter. First its threads copy both to shared memory together. Then comes `__syncthreads()`,
// a *barrier*: no thread passes it before all threads of the block have reached it. After the barrier, all
// sums are computed from shared memory. As in the first kernels of the course, a block has 32×32 threads,
// which stand for pixels, and the grid has a block for each image and filter.
//
// Gain: A block reads its image and filter from global memory once; in rung 3, each output reads 25 pixels
// and 25 taps. On the GPUs of the reports, whose caches were small and slow, that was most of the way from
// 2.5 s to 0.3 s.
//
// Slower: On this GPU the L1 cache is the same memory as shared memory, and it already held the few rows of
// the image that rung 3 reads again and again. The copy adds waiting: no thread multiplies before the last
// one has copied. And 32×32 threads fit neither 28 columns nor 24: with 24×24 outputs, 448 of 1,024 threads
// have nothing to compute. The next rungs make the copy worthwhile.
//
// Counter: `l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum`, the sectors of 32 bytes that threads read
// through the L1 cache: a small part of rung 3's.
//
// Reported: ece408-2017-high: 2.5 s to 0.3 s, together with the next rung.
//
// Launch: grid(B, M) block(32, 32) shared(4 * C * (H * W + K * K))

#include "cpu/tutorial/ladder/convolution.h"

namespace convswap::ladder {

// One array for each block. The launch sets its size, that of image and filter: (784 + 25) * 4 bytes for
// ece408-2017-high.
extern __shared__ float shared[];

__global__ void shared_memory(Convolution conv) {
  const int n = blockIdx.x, k = blockIdx.y;
  float* const image = shared;                                             // channels x height x width
  float* const filter = image + conv.channels * conv.height * conv.width;  // channels x rows x columns

  for (int c = 0; c < conv.channels; ++c) {
    for (int h = threadIdx.y; h < conv.height; h += blockDim.y) {
      for (int w = threadIdx.x; w < conv.width; w += blockDim.x) {
        image[(c * conv.height + h) * conv.width + w] =
            conv.x[((n * conv.channels + c) * conv.height + h) * conv.width + w];
      }
    }
    for (int r = threadIdx.y; r < conv.filter_height; r += blockDim.y) {
      for (int s = threadIdx.x; s < conv.filter_width; s += blockDim.x) {
        filter[(c * conv.filter_height + r) * conv.filter_width + s] =
            conv.w[((k * conv.channels + c) * conv.filter_height + r) * conv.filter_width + s];
      }
    }
  }
  __syncthreads();

  for (int p = threadIdx.y; p < conv.out_height; p += blockDim.y) {
    for (int q = threadIdx.x; q < conv.out_width; q += blockDim.x) {
      float sum = conv.b[k];
      for (int c = 0; c < conv.channels; ++c) {
        for (int r = 0; r < conv.filter_height; ++r) {
          for (int s = 0; s < conv.filter_width; ++s) {
            sum += image[(c * conv.height + p + r) * conv.width + q + s] *
                   filter[(c * conv.filter_height + r) * conv.filter_width + s];
          }
        }
      }
      conv.y[((n * conv.filters + k) * conv.out_height + p) * conv.out_width + q] = sum;
    }
  }
}

}  // namespace convswap::ladder
