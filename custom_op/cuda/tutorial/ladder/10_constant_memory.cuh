#pragma once

// Rung 10. The filters in constant memory
//
// Idea: In rung 9 the taps still come from shared memory, although all 32 threads of a warp need the same tap
// at the same time. The GPU has *constant memory* for exactly that: 64 KB that no kernel writes, behind a
// cache of its own. If all threads of a warp read the same address there, it is read once for all of them;
// from compute capability 8.0 on, into a register that the warp shares. The filters of every layer of the
// course fit (the largest are 56,448 bytes), so they are copied there before the kernel starts. The library
// has one such array on a GPU: the next user of this rung has to wait until it is free.
//
// The cache is small: two kilobytes near the cores, while the filters of ece408-2017-high take five. So all
// threads take a few filters at a time (10 here, 1,000 bytes), whose taps stay in the cache for the warps
// that come after. And each thread computes up to four outputs at once (three here), so that it uses a
// fetched tap for all of them. With many channels, even a few filters exceed that cache.
//
// Gain: Shared memory is read for pixels only: one read, and then as many multiplications as there are
// filters at a time. And a block copies no filters.
//
// Slower: A load for the entire warp is an instruction too. Each tap takes one, where rung 9 reads four taps
// at a time; and each pixel is read once for every few filters. In the form of rung 9, which computes one
// output of all filters at a time, this rung took 4.05 ms for ece408-2017-high on an H200: the taps passed
// through the small cache again for each output.
//
// Counter: `l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum`, the reads of shared memory; and
// `smsp__inst_executed_pipe_fma.sum` over `smsp__inst_executed.sum`, the share of the instructions that
// multiply.
//
// No copy: it needs the host to fill constant memory first, which a launch line cannot express

#include "cpu/tutorial/ladder/convolution.h"
#include "cuda/tutorial/ladder/sizes.h"

namespace convswap::ladder {

extern __shared__ float shared[];

// A block has kConstantMemoryThreads threads, 192 (sizes.h).

// All of the constant memory: filters x channels x filter height x filter width, as in w.
__constant__ float filters_of_layer[16384];

// Filters that a thread computes at a time: at most 12, and a divisor of their number.
__host__ __device__ constexpr int filters_per_pass(int filters) {
  int count = 12;
  while (filters % count != 0) --count;
  return count;
}

// Outputs that a thread computes at a time: at most four, and the same number in each pass.
__host__ __device__ constexpr int outputs_per_pass(int outputs) {
  const int outputs_per_thread = (outputs + kConstantMemoryThreads - 1) / kConstantMemoryThreads;
  const int passes = (outputs_per_thread + 3) / 4;
  return (outputs_per_thread + passes - 1) / passes;
}

template <int kChannels, int kSize, int kFilters, int kFilterSize>
__global__ void __launch_bounds__(kConstantMemoryThreads) constant_memory(Convolution conv) {
  constexpr int kPixels = kChannels * kSize * kSize;
  constexpr int kOutSize = kSize - kFilterSize + 1;
  constexpr int kOutputs = kOutSize * kOutSize;
  constexpr int kFiltersPerPass = filters_per_pass(kFilters);
  constexpr int kOutputsPerPass = outputs_per_pass(kOutputs);
  const int n = blockIdx.x;
  float* const image = shared;

  for (int i = threadIdx.x; i < kPixels; i += kConstantMemoryThreads) image[i] = conv.x[n * kPixels + i];
  __syncthreads();

  // All threads run the same number of passes, so that the compiler knows that their warps stay together.
  // Threads past the end compute the last output once more.
  for (int first = 0; first < kOutputs; first += kOutputsPerPass * kConstantMemoryThreads) {
    int outputs[kOutputsPerPass], corners[kOutputsPerPass];
#pragma unroll
    for (int j = 0; j < kOutputsPerPass; ++j) {
      const int i = first + j * kConstantMemoryThreads + static_cast<int>(threadIdx.x);
      outputs[j] = min(i, kOutputs - 1);
      corners[j] = outputs[j] / kOutSize * kSize + outputs[j] % kOutSize;
    }

#pragma unroll 1
    for (int first_filter = 0; first_filter < kFilters; first_filter += kFiltersPerPass) {
      float sums[kOutputsPerPass][kFiltersPerPass];
#pragma unroll
      for (int j = 0; j < kOutputsPerPass; ++j) {
#pragma unroll
        for (int k = 0; k < kFiltersPerPass; ++k) sums[j][k] = conv.b[first_filter + k];
      }

#pragma unroll 1
      for (int c = 0; c < kChannels; ++c) {
        // Each thread takes the value of its warp's first thread. The values are equal, but now the compiler
        // knows it and reads a tap once for the warp; otherwise each thread reads for itself.
        const int uniform_filter = __shfl_sync(~0u, first_filter, 0);
#pragma unroll
        for (int r = 0; r < kFilterSize; ++r) {
#pragma unroll
          for (int s = 0; s < kFilterSize; ++s) {
            float pixels[kOutputsPerPass];
#pragma unroll
            for (int j = 0; j < kOutputsPerPass; ++j) {
              pixels[j] = image[(c * kSize + r) * kSize + s + corners[j]];
            }
#pragma unroll
            for (int k = 0; k < kFiltersPerPass; ++k) {
              const int filter = (uniform_filter + k) * kChannels + c;
              const float tap = filters_of_layer[(filter * kFilterSize + r) * kFilterSize + s];
#pragma unroll
              for (int j = 0; j < kOutputsPerPass; ++j) sums[j][k] += pixels[j] * tap;
            }
          }
        }
      }

#pragma unroll
      for (int j = 0; j < kOutputsPerPass; ++j) {
#pragma unroll
        for (int k = 0; k < kFiltersPerPass; ++k) {
          conv.y[(n * kFilters + first_filter + k) * kOutputs + outputs[j]] = sums[j][k];
        }
      }
    }
  }
}

}  // namespace convswap::ladder
