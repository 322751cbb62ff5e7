#pragma once

// Rung 10. The filters in constant memory
//
// Idea: In rung 9 the taps of the filters still come out of shared memory, and all 32 threads of a warp want
// the same one at the same time. For just that the card has *constant memory*: 64 KB that no kernel writes,
// behind a cache of its own. What all threads of a warp read there is read once, for all of them: older
// cards take it as an operand of the multiplication itself; newer ones bring it into a register that the
// warp shares. The filters of every layer of the course fit (the largest are 56,448 bytes), so they are
// copied there before the kernel starts. A card has but one such memory: whoever comes next has to wait
// until it is free.
//
// Gain: No read of shared memory is for a filter any more, only one for each pixel, and then as many
// multiplications as there are filters. A block copies no filters, either.
//
// Slower: To read for a warp is an instruction too, and each tap takes one of its own, where rung 9 read
// four at a time. And where the filters are many, each is used once for an output, and the small cache of
// constants near the cores has to fetch them again and again.
//
// Counter: `l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum`, the reads of shared memory: next to none;
// and `smsp__inst_executed_pipe_fma.sum` over `smsp__inst_executed.sum`, the share of the instructions that
// multiply.

#include "conv/ladder_convolution.h"

namespace convswap::ladder {

extern __shared__ float shared[];

constexpr int kConstantMemoryThreads = 192;

// All there is of it; filters x channels x their height x their width, as w has them.
__constant__ float filters_of_layer[16384];

template <int kChannels, int kSize, int kFilters, int kFilter>
__global__ void __launch_bounds__(kConstantMemoryThreads) constant_memory(Convolution conv) {
  constexpr int kPixels = kChannels * kSize * kSize;
  constexpr int kOutSize = kSize - kFilter + 1;
  constexpr int kOutputs = kOutSize * kOutSize;
  const int n = blockIdx.x;
  float* const image = shared;

  for (int i = threadIdx.x; i < kPixels; i += kConstantMemoryThreads) image[i] = conv.x[n * kPixels + i];
  __syncthreads();

  // All threads go round as often as each other, so that the compiler knows their warps to be together; those
  // beyond the end compute the last output once more.
  for (int first = 0; first < kOutputs; first += kConstantMemoryThreads) {
    const int i = min(first + static_cast<int>(threadIdx.x), kOutputs - 1);
    const int p = i / kOutSize, q = i % kOutSize;
    float sums[kFilters];
#pragma unroll
    for (int k = 0; k < kFilters; ++k) sums[k] = conv.b[k];

#pragma unroll 1
    for (int c = 0; c < kChannels; ++c) {
#pragma unroll
      for (int r = 0; r < kFilter; ++r) {
#pragma unroll
        for (int s = 0; s < kFilter; ++s) {
          const float pixel = image[(c * kSize + p + r) * kSize + q + s];
#pragma unroll
          for (int k = 0; k < kFilters; ++k) {
            sums[k] += pixel * filters_of_layer[((k * kChannels + c) * kFilter + r) * kFilter + s];
          }
        }
      }
    }

#pragma unroll
    for (int k = 0; k < kFilters; ++k) conv.y[(n * kFilters + k) * kOutputs + i] = sums[k];
  }
}

}  // namespace convswap::ladder
