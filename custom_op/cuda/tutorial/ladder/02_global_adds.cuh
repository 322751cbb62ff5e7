#pragma once

// Rung 2. A thread for every output, adding into global memory
//
// Idea: A GPU has thousands of small cores. It runs a *kernel*: a function that every *thread* executes once,
// and there may be millions of threads. Threads come in *blocks* (here of 256), and a thread learns its index
// from `blockIdx` and `threadIdx`. The outputs of a convolution do not depend on each other, so the four
// outer loops of rung 1 vanish: each of the 288 million outputs gets its own thread, which runs the three
// inner loops. The thread adds up its sum directly in y. Like x and w, y lies in *global memory*, the GPU's
// large, distant memory.
//
// Gain: Parallelism. Hundreds of thousands of threads are in flight at the same time, and while some wait for
// memory, others compute.
//
// Counter: `sm__warps_active.avg.pct_of_peak_sustained_active`, the *occupancy*: the share of the thread
// slots that are in use. It is near 100.
//
// Reported: ece408-2017-high: 2.868 s; 0.448 s in another report. ece408-2017-low: 2.921 s. ece408-2019fa:
// 0.0429 s + 0.3596 s on Volta.
//
// Launch: grid(ceil_div(B * M * H_out * W_out, 256)) block(256)

#include "cpu/tutorial/ladder/convolution.h"

namespace convswap::ladder {

__global__ void global_adds(Convolution conv) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  const int outputs = conv.batch * conv.filters * conv.out_height * conv.out_width;
  // The last block may have threads without an output.
  if (i >= outputs) return;
  const int q = i % conv.out_width;
  const int p = i / conv.out_width % conv.out_height;
  const int k = i / (conv.out_width * conv.out_height) % conv.filters;
  const int n = i / (conv.out_width * conv.out_height * conv.filters);

  conv.y[i] = conv.b[k];
  for (int c = 0; c < conv.channels; ++c) {
    for (int r = 0; r < conv.filter_height; ++r) {
      for (int s = 0; s < conv.filter_width; ++s) {
        conv.y[i] += conv.x[((n * conv.channels + c) * conv.height + p + r) * conv.width + q + s] *
                     conv.w[((k * conv.channels + c) * conv.filter_height + r) * conv.filter_width + s];
      }
    }
  }
}

}  // namespace convswap::ladder
