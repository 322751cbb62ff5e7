#pragma once

// Rung 10. The filters in constant memory
//
// Idea: In rung 9 the taps of the filters still come out of shared memory, and all 32 threads of a warp want
// the same one at the same time. For just that the card has *constant memory*: 64 KB that no kernel writes,
// behind a cache of its own. What all threads of a warp read there is read once, for all of them; cards from
// compute capability 8.0 on bring it into a register that the warp shares. The filters of every layer of the
// course fit (the largest are 56,448 bytes), so they are copied there before the kernel starts. The library
// has one such array on a card: whoever uses this rung next has to wait until it is free.
//
// The cache is small: two kilobytes near the cores, where the filters of ece408-2017-high take five. So all
// threads take a few filters at a time (10 here, 1,000 bytes), whose taps stay in the cache for the warps
// that come after, and each thread computes up to four outputs at once (three here), so that a tap that was
// fetched is used for all of them. With many channels even a few filters are more than that cache holds.
//
// Gain: No read of shared memory is for a filter any more, only one for each pixel, and then as many
// multiplications as there are filters at a time. A block copies no filters, either.
//
// Slower: To read for a warp is an instruction too, and each tap takes one of its own, where rung 9 read
// four at a time; and each pixel is read once for every few filters. In the form of rung 9, which computes
// one output of all filters at a time, this rung took 4.05 ms for ece408-2017-high on an H200: the taps went
// through the small cache again for each output.
//
// Counter: `l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum`, the reads of shared memory; and
// `smsp__inst_executed_pipe_fma.sum` over `smsp__inst_executed.sum`, the share of the instructions that
// multiply.
//
// No copy: it has the host fill constant memory first, which a launch line cannot say

#include "cpu/tutorial/ladder/convolution.h"
#include "cuda/tutorial/ladder/sizes.h"

namespace convswap::ladder {

extern __shared__ float shared[];

// A block has kConstantMemoryThreads threads, 192 (sizes.h).

// All of the constant memory; filters x channels x their height x their width, as w has them.
__constant__ float filters_of_layer[16384];

// The most filters that a thread computes at a time; they divide all there are.
__host__ __device__ constexpr int filters_at_a_time(int filters) {
  int most = 12;
  while (filters % most != 0) --most;
  return most;
}

// How many of its outputs a thread computes at a time: four at most, and the same number each time.
__host__ __device__ constexpr int outputs_at_a_time(int outputs) {
  const int of_a_thread = (outputs + kConstantMemoryThreads - 1) / kConstantMemoryThreads;
  const int times = (of_a_thread + 3) / 4;
  return (of_a_thread + times - 1) / times;
}

template <int kChannels, int kSize, int kFilters, int kFilter>
__global__ void __launch_bounds__(kConstantMemoryThreads) constant_memory(Convolution conv) {
  constexpr int kPixels = kChannels * kSize * kSize;
  constexpr int kOutSize = kSize - kFilter + 1;
  constexpr int kOutputs = kOutSize * kOutSize;
  constexpr int kFiltersAtATime = filters_at_a_time(kFilters);
  constexpr int kOutputsAtATime = outputs_at_a_time(kOutputs);
  const int n = blockIdx.x;
  float* const image = shared;

  for (int i = threadIdx.x; i < kPixels; i += kConstantMemoryThreads) image[i] = conv.x[n * kPixels + i];
  __syncthreads();

  // All threads go round as often as each other, so that the compiler knows their warps to be together; those
  // beyond the end compute the last output once more.
  for (int first = 0; first < kOutputs; first += kOutputsAtATime * kConstantMemoryThreads) {
    int outputs[kOutputsAtATime], corners[kOutputsAtATime];
#pragma unroll
    for (int j = 0; j < kOutputsAtATime; ++j) {
      const int i = first + j * kConstantMemoryThreads + static_cast<int>(threadIdx.x);
      outputs[j] = min(i, kOutputs - 1);
      corners[j] = outputs[j] / kOutSize * kSize + outputs[j] % kOutSize;
    }

#pragma unroll 1
    for (int first_filter = 0; first_filter < kFilters; first_filter += kFiltersAtATime) {
      float sums[kOutputsAtATime][kFiltersAtATime];
#pragma unroll
      for (int j = 0; j < kOutputsAtATime; ++j) {
#pragma unroll
        for (int k = 0; k < kFiltersAtATime; ++k) sums[j][k] = conv.b[first_filter + k];
      }

#pragma unroll 1
      for (int c = 0; c < kChannels; ++c) {
        // Each thread takes the value that the first of its warp has. They are all the same, but now the
        // compiler knows, and reads a tap once for the warp; otherwise each thread reads for itself.
        const int agreed = __shfl_sync(~0u, first_filter, 0);
#pragma unroll
        for (int r = 0; r < kFilter; ++r) {
#pragma unroll
          for (int s = 0; s < kFilter; ++s) {
            float pixels[kOutputsAtATime];
#pragma unroll
            for (int j = 0; j < kOutputsAtATime; ++j) {
              pixels[j] = image[(c * kSize + r) * kSize + s + corners[j]];
            }
#pragma unroll
            for (int k = 0; k < kFiltersAtATime; ++k) {
              const int filter = (agreed + k) * kChannels + c;
              const float tap = filters_of_layer[(filter * kFilter + r) * kFilter + s];
#pragma unroll
              for (int j = 0; j < kOutputsAtATime; ++j) sums[j][k] += pixels[j] * tap;
            }
          }
        }
      }

#pragma unroll
      for (int j = 0; j < kOutputsAtATime; ++j) {
#pragma unroll
        for (int k = 0; k < kFiltersAtATime; ++k) {
          conv.y[(n * kFilters + first_filter + k) * kOutputs + outputs[j]] = sums[j][k];
        }
      }
    }
  }
}

}  // namespace convswap::ladder
