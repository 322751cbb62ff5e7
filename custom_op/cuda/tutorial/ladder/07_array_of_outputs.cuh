#pragma once

// Rung 7. An array of outputs in each thread
//
// Idea: A thread of rung 6 reads two numbers from shared memory, a pixel and a tap, for one multiplication.
// In one cycle, shared memory serves one warp with a number for each thread, while the cores of a
// multiprocessor could multiply for four warps. So we exchange the loops: a thread keeps the sums of *all*
// filters for its pixel in an array, reads each pixel of its window once, and multiplies it by the tap of
// every filter. All filters stay in shared memory, sorted so that the values of one tap are adjacent for all
// filters.
//
// An array can live in registers only if the compiler knows every index into it. So the number of filters
// becomes a parameter of a *template*, and the loops over the filters are *unrolled*: `#pragma unroll` asks
// the compiler to write a loop out, once for each value of its counter. A thread has at most 255 registers,
// and a multiprocessor has 65,536 for all of its threads. In a block of 1,024 threads, each could have 64,
// too few for 50 sums and their addresses. In a block of 192 threads, each can have more than enough.
// `__launch_bounds__` promises the compiler that a block has no more threads. (And 192 divides the 576 pixels
// of a 24×24 result.)
//
// Gain: One read of shared memory for each multiplication instead of two, and only one barrier. The course's
// report gave this up for lack of registers. It works on an H200: a thread has 80 registers for 50 sums, and
// nothing is *spilled* to memory for lack of registers.
//
// Slower: With few filters, few sums share a pixel, and 192 threads hide latency less well than 1,024.
//
// Counter: `launch__registers_per_thread`; and `l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum`, the
// reads of shared memory: half of rung 6's.
//
// Reported: ece408-2017-high: not possible, too many registers.
//
// Launch: grid(B) block(192) shared(4 * C * (H * W + M * K * K))
//
// Constants: kFilters = 50, kArrayThreads = 192
//
// Only: M == 50

#include "cpu/tutorial/ladder/convolution.h"
#include "cuda/tutorial/ladder/sizes.h"

namespace convswap::ladder {

extern __shared__ float shared[];

// A block has kArrayThreads threads, 192 (sizes.h).

template <int kFilters>
__global__ void __launch_bounds__(kArrayThreads) array_of_outputs(Convolution conv) {
  const int n = blockIdx.x;
  const int pixels = conv.channels * conv.height * conv.width;
  const int taps = conv.channels * conv.filter_height * conv.filter_width;
  const int outputs = conv.out_height * conv.out_width;
  float* const image = shared;
  float* const filters = image + pixels;  // taps x kFilters

  for (int i = threadIdx.x; i < pixels; i += blockDim.x) image[i] = conv.x[n * pixels + i];
  // The numbers are not adjacent in global memory, but a block reads them only once.
  for (int i = threadIdx.x; i < taps * kFilters; i += blockDim.x) {
    filters[i] = conv.w[i % kFilters * taps + i / kFilters];
  }
  __syncthreads();

  for (int i = threadIdx.x; i < outputs; i += blockDim.x) {
    const int p = i / conv.out_width, q = i % conv.out_width;
    float sums[kFilters];
#pragma unroll
    for (int k = 0; k < kFilters; ++k) sums[k] = conv.b[k];

    const float* tap = filters;
    for (int c = 0; c < conv.channels; ++c) {
      for (int r = 0; r < conv.filter_height; ++r) {
        for (int s = 0; s < conv.filter_width; ++s, tap += kFilters) {
          const float pixel = image[(c * conv.height + p + r) * conv.width + q + s];
#pragma unroll
          for (int k = 0; k < kFilters; ++k) sums[k] += pixel * tap[k];
        }
      }
    }

#pragma unroll
    for (int k = 0; k < kFilters; ++k) conv.y[(n * kFilters + k) * outputs + i] = sums[k];
  }
}

}  // namespace convswap::ladder
