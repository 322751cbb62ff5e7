#pragma once

// Rung 14. The tensor cores
//
// Idea: Besides its ordinary cores a multiprocessor has *tensor cores*, which do one thing: multiply two
// small matrices and add a third. One instruction of a warp, `mma`, does 16×8×8 multiplications, 1,024. Rung
// 12 is a matrix product already. Its inner loop becomes two such instructions, and what stands around it
// follows: a block of four warps takes 16 filters and 64 columns, 8 taps at a time, each warp 16 of the
// columns, 8 by each instruction. The threads of a warp hold the three matrices together, a few numbers each,
// and the hardware says who holds what. Lane 4g + t has, of 16 filters x 8 taps, filters g and g + 8 at taps
// t and t + 4; of 8 taps x 8 columns, taps t and t + 4 of column g; and of the sums, filters g and g + 8 of
// columns 2t and 2t + 1. So each thread fetches its own from shared memory, all 32 multiply together
// (`mma_m16n8k8_tf32`, in cuda/primitives/mma.cuh, is the instruction), and in the end each puts its
// sums where the others find them, since neighbouring threads shall write neighbouring results.
//
// What goes in is rounded to TF32: the range of float32, but 10 bits after the point instead of 23. The sums
// are float32. ONNX Runtime's own Conv on the card does the same, unless it is told otherwise.
//
// Gain: On an H200 the tensor cores multiply some seven times as fast as all ordinary cores together, so that
// multiplications cost next to nothing: what is left is to bring them their numbers.
//
// Slower: And that is all there is to do here: the divisions and the copies to shared memory are still there,
// and the two barriers come every 8 taps, where rung 12 has them every 16. The tensor cores wait for them
// nearly all of the time. Their feeding is what the algorithm of the next rung is made of.
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

// The sizes are in `sizes.h`: a block of four warps, kTensorThreads, has 16 filters,
// kTensorFilters, and 64 columns, kTensorColumns, and takes 8 taps at a time, kTensorTaps. An instruction
// takes kColumnsAtOnce, 8 of the columns, so that a warp has kInstructions, 2, for each 8 taps.
__global__ void __launch_bounds__(kTensorThreads) tensor_cores(Convolution conv) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#error "older cards have no tensor cores for TF32: it takes compute capability 8.0"
#else
  const int taps = conv.channels * conv.filter_height * conv.filter_width;
  const int outputs = conv.out_height * conv.out_width;
  const int columns = conv.batch * outputs;
  float* const filter_tile = shared;                                      // filters x taps
  float* const column_tile = filter_tile + kTensorFilters * kTensorTaps;  // taps x columns
  float* const result_tile = column_tile + kTensorTaps * kTensorColumns;  // filters x columns
  const int first_filter = blockIdx.y * kTensorFilters, first_column = blockIdx.x * kTensorColumns;
  // Of lane 4g + t.
  const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  const int first_of_warp = threadIdx.x / 32 * kInstructions * kColumnsAtOnce;
  float sums[kInstructions][4] = {};

  for (int first = 0; first < taps; first += kTensorTaps) {
    for (int i = threadIdx.x; i < kTensorFilters * kTensorTaps; i += kTensorThreads) {
      const int k = first_filter + i / kTensorTaps, tap = first + i % kTensorTaps;
      const bool is_there = k < conv.filters && tap < taps;
      filter_tile[i] = is_there ? round_to_tf32(conv.w[k * taps + tap]) : 0.0f;
    }
    for (int i = threadIdx.x; i < kTensorTaps * kTensorColumns; i += kTensorThreads) {
      const int column = first_column + i % kTensorColumns, tap = first + i / kTensorColumns;
      const int n = column / outputs, p = column % outputs / conv.out_width, q = column % conv.out_width;
      const int s = tap % conv.filter_width;
      const int r = tap / conv.filter_width % conv.filter_height;
      const int c = tap / (conv.filter_width * conv.filter_height);
      const bool is_there = column < columns && tap < taps;
      const int pixel = ((n * conv.channels + c) * conv.height + p + r) * conv.width + q + s;
      column_tile[i] = is_there ? round_to_tf32(conv.x[pixel]) : 0.0f;
    }
    __syncthreads();
    const float* const own_filters = filter_tile + g * kTensorTaps + t;
    const float filters[] = {own_filters[0], own_filters[8 * kTensorTaps], own_filters[4],
                             own_filters[8 * kTensorTaps + 4]};
#pragma unroll
    for (int i = 0; i < kInstructions; ++i) {
      const float* const own_column =
          column_tile + t * kTensorColumns + first_of_warp + i * kColumnsAtOnce + g;
      const float pixels[] = {own_column[0], own_column[4 * kTensorColumns]};
      mma_m16n8k8_tf32(sums[i], filters, pixels);
    }
    __syncthreads();
  }

#pragma unroll
  for (int i = 0; i < kInstructions; ++i) {
    float* const own = result_tile + g * kTensorColumns + first_of_warp + i * kColumnsAtOnce + 2 * t;
    own[0] = sums[i][0], own[1] = sums[i][1];
    own[8 * kTensorColumns] = sums[i][2], own[8 * kTensorColumns + 1] = sums[i][3];
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
