#pragma once

// Rung 9. Every extent a constant
//
// Idea: Rung 8 knows the filters at compile time, but not the image: its width is a variable, to multiply and
// divide by. Now the kernel is compiled once for each layer of the course, with all sizes as template
// parameters. The loops are loops again, as in rung 7, under `#pragma unroll`: once the compiler knows how
// often a loop runs, it does by itself what rung 8 does by hand.
//
// Gain: A division by a constant becomes a multiplication and a shift, and the distance between two pixels
// becomes a constant inside an instruction. The compiler also knows the address of every tap. So it reads
// four adjacent taps, aligned to 16 bytes, with one instruction, where rung 8 takes four.
//
// Slower: The compiler orders the fully unrolled loop so that it loads far ahead. That takes registers, so
// fewer blocks fit on a multiprocessor.
//
// Counter: `l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum`, the reads of shared memory, and
// `smsp__inst_executed.sum`, instructions of all kinds: both fewer than in rung 8.
//
// Reported: ece408-2017-high: 0.0768 s, 68.25 ms as submitted. ece408-2017-low: 0.0686 s.
//
// Launch: grid(B) block(192) shared(4 * C * (H * W + M * K * K))
//
// Constants: kChannels = 1, kSize = 28, kFilters = 50, kFilterSize = 5, kConstantsThreads = 192
//
// Only: C == 1 && H == 28 && W == 28 && M == 50 && K == 5

#include "cpu/tutorial/ladder/convolution.h"
#include "cuda/tutorial/ladder/sizes.h"

namespace convswap::ladder {

extern __shared__ float shared[];

// A block has kConstantsThreads threads, 192 (sizes.h).

// kSize: height and width of an image; kFilterSize: height and width of a filter.
template <int kChannels, int kSize, int kFilters, int kFilterSize>
__global__ void __launch_bounds__(kConstantsThreads) constants(Convolution conv) {
  constexpr int kPixels = kChannels * kSize * kSize;
  constexpr int kTaps = kChannels * kFilterSize * kFilterSize;
  constexpr int kOutSize = kSize - kFilterSize + 1;
  constexpr int kOutputs = kOutSize * kOutSize;
  const int n = blockIdx.x;
  float* const image = shared;
  float* const filters = image + kPixels;  // kTaps x kFilters

  for (int i = threadIdx.x; i < kPixels; i += kConstantsThreads) image[i] = conv.x[n * kPixels + i];
  for (int i = threadIdx.x; i < kTaps * kFilters; i += kConstantsThreads) {
    filters[i] = conv.w[i % kFilters * kTaps + i / kFilters];
  }
  __syncthreads();

  for (int i = threadIdx.x; i < kOutputs; i += kConstantsThreads) {
    // All taps have known addresses now, and the compiler would read them before this loop, into more
    // registers than there are. The next line claims to change memory, so that the reads stay inside.
    asm volatile("" ::: "memory");
    const int p = i / kOutSize, q = i % kOutSize;
    float sums[kFilters];
#pragma unroll
    for (int k = 0; k < kFilters; ++k) sums[k] = conv.b[k];

    // Not unrolled: the code of twelve channels would not fit into the instruction cache.
#pragma unroll 1
    for (int c = 0; c < kChannels; ++c) {
#pragma unroll
      for (int r = 0; r < kFilterSize; ++r) {
#pragma unroll
        for (int s = 0; s < kFilterSize; ++s) {
          const float pixel = image[(c * kSize + p + r) * kSize + q + s];
#pragma unroll
          for (int k = 0; k < kFilters; ++k) {
            sums[k] += pixel * filters[((c * kFilterSize + r) * kFilterSize + s) * kFilters + k];
          }
        }
      }
    }

#pragma unroll
    for (int k = 0; k < kFilters; ++k) conv.y[(n * kFilters + k) * kOutputs + i] = sums[k];
  }
}

}  // namespace convswap::ladder
