#pragma once

// Rung 14. The tensor cores
//
// Idea: Besides its ordinary cores a multiprocessor has *tensor cores*, which do one thing: multiply two
// small matrices and add a third. One call by a warp does 16×16×8 multiplications, 2,048, in a few
// instructions (four on an H200). Rung 12 is a matrix product already. Its inner loop becomes one call, and
// what stands around it follows: a block of four warps takes 16 filters and 64 columns, 8 taps at a time,
// each warp 16 of the columns. The threads of a warp hold matrices together, as *fragments*, of which nobody
// has to know who holds what: `load_matrix_sync` brings one from shared memory (its last argument is the
// distance from row to row), `mma_sync` multiplies and adds, `store_matrix_sync` writes the sums back, and
// all 32 threads call them together. `matrix_a`, `matrix_b` and `accumulator` say which place in the product
// a fragment has.
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

#include <mma.h>

#include "conv/ladder_convolution.h"

namespace convswap::ladder {

extern __shared__ float shared[];

// A block: 16 filters and, by four warps, 64 columns.
constexpr int kTensorFilters = 16, kTensorColumns = 64, kTensorTaps = 8, kTensorThreads = 128;
constexpr int kTensorSharedFloats =
    kTensorFilters * kTensorTaps + kTensorTaps * kTensorColumns + kTensorFilters * kTensorColumns;

__global__ void __launch_bounds__(kTensorThreads) tensor_cores(Convolution conv) {
  // Older cards have no tensor cores for TF32.
#if __CUDA_ARCH__ >= 800
  namespace wmma = nvcuda::wmma;
  const int taps = conv.channels * conv.filter_height * conv.filter_width;
  const int outputs = conv.out_height * conv.out_width;
  const int columns = conv.batch * outputs;
  float* const filter_tile = shared;                                      // filters x taps
  float* const column_tile = filter_tile + kTensorFilters * kTensorTaps;  // taps x columns
  float* const result_tile = column_tile + kTensorTaps * kTensorColumns;  // filters x columns
  const int first_filter = blockIdx.y * kTensorFilters, first_column = blockIdx.x * kTensorColumns;
  const int first_of_warp = threadIdx.x / 32 * 16;

  wmma::fragment<wmma::matrix_a, 16, 16, 8, wmma::precision::tf32, wmma::row_major> filters;
  wmma::fragment<wmma::matrix_b, 16, 16, 8, wmma::precision::tf32, wmma::row_major> pixels;
  wmma::fragment<wmma::accumulator, 16, 16, 8, float> sums;
  wmma::fill_fragment(sums, 0.0f);

  for (int first = 0; first < taps; first += kTensorTaps) {
    for (int i = threadIdx.x; i < kTensorFilters * kTensorTaps; i += kTensorThreads) {
      const int k = first_filter + i / kTensorTaps, tap = first + i % kTensorTaps;
      const bool is_there = k < conv.filters && tap < taps;
      filter_tile[i] = is_there ? wmma::__float_to_tf32(conv.w[k * taps + tap]) : 0.0f;
    }
    for (int i = threadIdx.x; i < kTensorTaps * kTensorColumns; i += kTensorThreads) {
      const int column = first_column + i % kTensorColumns, tap = first + i / kTensorColumns;
      const int n = column / outputs, p = column % outputs / conv.out_width, q = column % conv.out_width;
      const int s = tap % conv.filter_width;
      const int r = tap / conv.filter_width % conv.filter_height;
      const int c = tap / (conv.filter_width * conv.filter_height);
      const bool is_there = column < columns && tap < taps;
      column_tile[i] = is_there
                           ? wmma::__float_to_tf32(
                                 conv.x[((n * conv.channels + c) * conv.height + p + r) * conv.width + q + s])
                           : 0.0f;
    }
    __syncthreads();
    wmma::load_matrix_sync(filters, filter_tile, kTensorTaps);
    wmma::load_matrix_sync(pixels, column_tile + first_of_warp, kTensorColumns);
    wmma::mma_sync(sums, filters, pixels, sums);
    __syncthreads();
  }

  wmma::store_matrix_sync(result_tile + first_of_warp, sums, kTensorColumns, wmma::mem_row_major);
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
