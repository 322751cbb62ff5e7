#pragma once

// Rung 7. An array of outputs in each thread
//
// Idea: A thread of rung 6 reads two numbers from shared memory, a pixel and a tap of the filter, for one
// multiplication. In a cycle shared memory serves one warp, a number for each thread, while the cores of a
// multiprocessor could multiply for four warps. So turn the loops around: a thread keeps the sums of *all*
// filters for its pixel in an array, fetches each pixel of its window once, and multiplies it by the tap of
// every filter. All filters stay in shared memory, sorted so that those of one tap lie side by side.
//
// An array can only live in registers if every index into it is known when the program is compiled, so the
// number of filters becomes a parameter of a *template*, and the loops over them are *unrolled*: `#pragma
// unroll` asks the compiler to write a loop out, once for each value of its counter. A thread has at most 255
// registers, and a multiprocessor 65,536 for all of its threads: a block of 1,024 threads could give each of
// them 64, which 50 sums and their addresses outgrow. A block of 192 threads can give more than enough, and
// `__launch_bounds__` promises the compiler that there are no more. (And 192 divides the 576 pixels of a
// 24×24 result.)
//
// Gain: One number from shared memory for each multiplication instead of two; the barriers are gone but one.
// The course's report gave this up for want of registers. An H200 takes it: 80 registers for a thread with 50
// sums, and nothing that did not fit and had to be *spilled* to memory.
//
// Slower: With few filters there is little to share a pixel among, and 192 threads hide waiting less well
// than 1,024.
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
  // Not neighbours in global memory, but read once for each block only.
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
