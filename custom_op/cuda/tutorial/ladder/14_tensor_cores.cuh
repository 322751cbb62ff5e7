#pragma once

// Rung 14. The tensor cores
//
// Idea: Besides its ordinary cores, a multiprocessor has *tensor cores*, which do one thing: multiply two
// small matrices and add a third. One instruction of a warp, `mma`, does 16×8×8 multiplications, 1,024. Rung
// 12 is a matrix product already. Its inner loop becomes two such instructions, and the code around it
// follows: a block of four warps takes 16 filters and 64 columns, 8 taps at a time. Each warp takes 16 of the
// columns, 8 by each instruction. The 32 threads of a warp, its *lanes*, hold the three matrices together, a
// few numbers each, in a layout that the hardware fixes. Lane 4g + t holds, of 16 filters x 8 taps, filters g
// and g + 8 at taps t and t + 4; of 8 taps x 8 columns, taps t and t + 4 of column g; and of the sums,
// filters g and g + 8 of columns 2t and 2t + 1. So each lane loads its numbers from shared memory, and all 32
// multiply together (`mma_m16n8k8_tf32`, in cuda/primitives/mma.cuh, is the instruction). At the end the
// lanes store their sums to shared memory, so that neighbouring threads can write neighbouring results.
//
// The factors are rounded to TF32: the range of float32, but 10 bits of mantissa instead of 23. The sums are
// float32. ONNX Runtime's own Conv on the GPU does the same by default.
//
// Gain: On an H200 the tensor cores multiply some seven times as fast as all ordinary cores together, so
// multiplications cost next to nothing. What remains is to supply them with numbers.
//
// Slower: Supplying them with numbers is all the work here. The divisions and the copies to shared memory are
// still there, and the two barriers come every 8 taps, where rung 12 has them every 16. The tensor cores wait
// nearly all of the time. The algorithm of the next rung is about keeping them supplied.
//
// Counter: `sm__inst_executed_pipe_tensor.sum`, instructions of the tensor cores: none before this rung; and
// `sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active`, how busy they are: hardly.
//
// Precision: tf32
//
// No copy: its instructions are in other files of the library; read
// custom_op/cuda/primitives/mma.cuh

#include "cpu/tutorial/ladder/convolution.h"
#include "cuda/primitives/mma.cuh"
#include "cuda/tutorial/ladder/sizes.h"

namespace convswap::ladder {

extern __shared__ float shared[];

// Sizes (sizes.h): a block has kTensorThreads = 128 threads, four warps, for kTensorFilters = 16 filters and
// kTensorColumns = 64 columns, and takes kTensorTaps = 8 taps at a time. One mma instruction takes
// kMmaColumns = 8 columns, so a warp issues kMmasPerWarp = 2 of them for each 8 taps.
__global__ void __launch_bounds__(kTensorThreads) tensor_cores(Convolution conv) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#error "tensor cores take TF32 from compute capability 8.0 on"
#else
  const int taps = conv.channels * conv.filter_height * conv.filter_width;
  const int outputs = conv.out_height * conv.out_width;
  const int columns = conv.batch * outputs;
  float* const filter_tile = shared;                                      // filters x taps
  float* const column_tile = filter_tile + kTensorFilters * kTensorTaps;  // taps x columns
  float* const result_tile = column_tile + kTensorTaps * kTensorColumns;  // filters x columns
  const int first_filter = blockIdx.y * kTensorFilters, first_column = blockIdx.x * kTensorColumns;
  // The lane is 4g + t.
  const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  const int warp_column = threadIdx.x / 32 * kMmasPerWarp * kMmaColumns;
  float sums[kMmasPerWarp][4] = {};

  for (int first = 0; first < taps; first += kTensorTaps) {
    for (int i = threadIdx.x; i < kTensorFilters * kTensorTaps; i += kTensorThreads) {
      const int k = first_filter + i / kTensorTaps, tap = first + i % kTensorTaps;
      const bool is_inside = k < conv.filters && tap < taps;
      filter_tile[i] = is_inside ? round_to_tf32(conv.w[k * taps + tap]) : 0.0f;
    }
    for (int i = threadIdx.x; i < kTensorTaps * kTensorColumns; i += kTensorThreads) {
      const int column = first_column + i % kTensorColumns, tap = first + i / kTensorColumns;
      const int n = column / outputs, p = column % outputs / conv.out_width, q = column % conv.out_width;
      const int s = tap % conv.filter_width;
      const int r = tap / conv.filter_width % conv.filter_height;
      const int c = tap / (conv.filter_width * conv.filter_height);
      const bool is_inside = column < columns && tap < taps;
      const int pixel = ((n * conv.channels + c) * conv.height + p + r) * conv.width + q + s;
      column_tile[i] = is_inside ? round_to_tf32(conv.x[pixel]) : 0.0f;
    }
    __syncthreads();
    const float* const lane_filters = filter_tile + g * kTensorTaps + t;
    const float filters[] = {lane_filters[0], lane_filters[8 * kTensorTaps], lane_filters[4],
                             lane_filters[8 * kTensorTaps + 4]};
#pragma unroll
    for (int i = 0; i < kMmasPerWarp; ++i) {
      const float* const lane_column = column_tile + t * kTensorColumns + warp_column + i * kMmaColumns + g;
      const float pixels[] = {lane_column[0], lane_column[4 * kTensorColumns]};
      mma_m16n8k8_tf32(sums[i], filters, pixels);
    }
    __syncthreads();
  }

#pragma unroll
  for (int i = 0; i < kMmasPerWarp; ++i) {
    float* const lane_sums = result_tile + g * kTensorColumns + warp_column + i * kMmaColumns + 2 * t;
    lane_sums[0] = sums[i][0], lane_sums[1] = sums[i][1];
    lane_sums[8 * kTensorColumns] = sums[i][2], lane_sums[8 * kTensorColumns + 1] = sums[i][3];
  }
  __syncthreads();
  for (int i = threadIdx.x; i < kTensorFilters * kTensorColumns; i += kTensorThreads) {
    const int k = first_filter + i / kTensorColumns, column = first_column + i % kTensorColumns;
    if (k >= conv.filters || column >= columns) continue;
    const int n = column / outputs, pixel = column % outputs;
    conv.y[(n * conv.filters + k) * outputs + pixel] = result_tile[i] + conv.b[k];
  }
#endif
}

}  // namespace convswap::ladder
