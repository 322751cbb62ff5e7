#pragma once

// Rung 8. The loops over the filter unrolled by hand
//
// Idea: A loop costs more than its body: its counter is incremented and compared, a jump is taken, and the
// address of each pixel is computed again. A filter is always 5×5 or 7×7 here, so its terms can be written
// out, without loops over rows and columns. The reports wrote out all 25 terms in one expression. Here a row
// of 5 or 7 terms is written out once, and called for each of the 5 or 7 rows.
//
// Gain: Only the reads and the multiplication of each term remain. Within a row, and for all taps, addresses
// become constant offsets from a pointer, which a load instruction adds by itself; only the start of a row is
// still computed. And a core that sees many independent loads can have them all in flight, where rung 7 had a
// jump after each pixel and its taps.
//
// Slower: With many filters the loop's body was already long, so the loop cost little. And now the
// instructions of several rows no longer fit into the instruction cache.
//
// Counter: `smsp__inst_executed_pipe_alu.sum`, integer instructions, most of them for loops and addresses: a
// fraction of rung 7's.
//
// Reported: ece408-2017-high: 0.203 s to 0.0782 s.
//
// Launch: grid(B) block(192) shared(4 * C * (H * W + M * K * K))
//
// Constants: kFilters = 50, kFilterSize = 5, kUnrolledThreads = 192
//
// Only: M == 50 && K == 5

#include "cpu/tutorial/ladder/convolution.h"
#include "cuda/tutorial/ladder/sizes.h"

namespace convswap::ladder {

extern __shared__ float shared[];

// A block has kUnrolledThreads threads, 192 (sizes.h).

template <int kFilters>
__device__ inline void add_term(float (&sums)[kFilters], float pixel, const float* tap) {
#pragma unroll
  for (int k = 0; k < kFilters; ++k) sums[k] += pixel * tap[k];
}

template <int kFilters>
__device__ inline void add_row_of_5(float (&sums)[kFilters], const float* row, const float* taps) {
  add_term(sums, row[0], taps);
  add_term(sums, row[1], taps + kFilters);
  add_term(sums, row[2], taps + 2 * kFilters);
  add_term(sums, row[3], taps + 3 * kFilters);
  add_term(sums, row[4], taps + 4 * kFilters);
}

template <int kFilters>
__device__ inline void add_row_of_7(float (&sums)[kFilters], const float* row, const float* taps) {
  add_term(sums, row[0], taps);
  add_term(sums, row[1], taps + kFilters);
  add_term(sums, row[2], taps + 2 * kFilters);
  add_term(sums, row[3], taps + 3 * kFilters);
  add_term(sums, row[4], taps + 4 * kFilters);
  add_term(sums, row[5], taps + 5 * kFilters);
  add_term(sums, row[6], taps + 6 * kFilters);
}

template <int kFilters>
__device__ inline void add_5x5(float (&sums)[kFilters], const float* window, int width, const float* taps) {
  add_row_of_5(sums, window, taps);
  add_row_of_5(sums, window + width, taps + 5 * kFilters);
  add_row_of_5(sums, window + 2 * width, taps + 10 * kFilters);
  add_row_of_5(sums, window + 3 * width, taps + 15 * kFilters);
  add_row_of_5(sums, window + 4 * width, taps + 20 * kFilters);
}

template <int kFilters>
__device__ inline void add_7x7(float (&sums)[kFilters], const float* window, int width, const float* taps) {
  add_row_of_7(sums, window, taps);
  add_row_of_7(sums, window + width, taps + 7 * kFilters);
  add_row_of_7(sums, window + 2 * width, taps + 14 * kFilters);
  add_row_of_7(sums, window + 3 * width, taps + 21 * kFilters);
  add_row_of_7(sums, window + 4 * width, taps + 28 * kFilters);
  add_row_of_7(sums, window + 5 * width, taps + 35 * kFilters);
  add_row_of_7(sums, window + 6 * width, taps + 42 * kFilters);
}

// kFilters: the number of filters; kFilterSize: their height and width.
template <int kFilters, int kFilterSize>
__global__ void __launch_bounds__(kUnrolledThreads) unrolled(Convolution conv) {
  constexpr int kTaps = kFilterSize * kFilterSize;
  const int n = blockIdx.x;
  const int pixels = conv.channels * conv.height * conv.width;
  const int taps = conv.channels * kTaps;
  const int outputs = conv.out_height * conv.out_width;
  float* const image = shared;
  float* const filters = image + pixels;  // taps x kFilters

  for (int i = threadIdx.x; i < pixels; i += blockDim.x) image[i] = conv.x[n * pixels + i];
  for (int i = threadIdx.x; i < taps * kFilters; i += blockDim.x) {
    filters[i] = conv.w[i % kFilters * taps + i / kFilters];
  }
  __syncthreads();

  for (int i = threadIdx.x; i < outputs; i += blockDim.x) {
    const int p = i / conv.out_width, q = i % conv.out_width;
    float sums[kFilters];
#pragma unroll
    for (int k = 0; k < kFilters; ++k) sums[k] = conv.b[k];

    for (int c = 0; c < conv.channels; ++c) {
      const float* const window = image + (c * conv.height + p) * conv.width + q;
      const float* const channel_filters = filters + c * kTaps * kFilters;
      if constexpr (kFilterSize == 5) add_5x5(sums, window, conv.width, channel_filters);
      if constexpr (kFilterSize == 7) add_7x7(sums, window, conv.width, channel_filters);
    }

#pragma unroll
    for (int k = 0; k < kFilters; ++k) conv.y[(n * kFilters + k) * outputs + i] = sums[k];
  }
}

}  // namespace convswap::ladder
