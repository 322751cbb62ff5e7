#pragma once

// Rung 3. The sum in a register
//
// Idea: In rung 2 every addition writes y to global memory. The compiler has to keep these writes: for all it
// knows, x and y overlap, and the next read of x may see what was written to y. A local variable lives in a
// *register*, which a core reads and writes without delay. So the sum becomes a local variable, and y is
// written once.
//
// Gain: A 5×5 filter meant 26 writes of y for each output: one of the bias and one for each tap. Now there is
// one. (The compiler already saw that y need not be read back.) The remaining reads, of image and filter,
// mostly hit the caches.
//
// Counter: `l1tex__t_requests_pipe_lsu_mem_global_op_st.sum`, the store requests: one where there were 26.
//
// Reported: ece408-2017-high: the first step of 2.5 s to 0.3 s.
//
// Launch: grid(ceil_div(B * M * H_out * W_out, 256)) block(256)

#include "cpu/tutorial/ladder/convolution.h"

namespace convswap::ladder {

__global__ void register_sum(Convolution conv) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  const int outputs = conv.batch * conv.filters * conv.out_height * conv.out_width;
  if (i >= outputs) return;
  const int q = i % conv.out_width;
  const int p = i / conv.out_width % conv.out_height;
  const int k = i / (conv.out_width * conv.out_height) % conv.filters;
  const int n = i / (conv.out_width * conv.out_height * conv.filters);

  float sum = conv.b[k];
  for (int c = 0; c < conv.channels; ++c) {
    for (int r = 0; r < conv.filter_height; ++r) {
      for (int s = 0; s < conv.filter_width; ++s) {
        sum += conv.x[((n * conv.channels + c) * conv.height + p + r) * conv.width + q + s] *
               conv.w[((k * conv.channels + c) * conv.filter_height + r) * conv.filter_width + s];
      }
    }
  }
  conv.y[i] = sum;
}

}  // namespace convswap::ladder
