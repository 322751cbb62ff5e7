#pragma once

// Rung 2. A thread for every output, adding into global memory
//
// Idea: A graphics card has thousands of small cores. It runs a *kernel*: a function that is started once for
// every *thread*, of which there may be millions. Threads come in *blocks* (here of 256), and each finds out
// which one it is from `blockIdx` and `threadIdx`. No output of a convolution depends on another, so the four
// outer loops of rung 1 vanish: each of the 288 million outputs gets a thread of its own, and the three inner
// loops stay. The sum is kept where it will be needed in the end, in y, which like x and w lies in *global
// memory*, the card's large, distant memory.
//
// Gain: Everything at once: hundreds of thousands of threads are under way together, and while some wait for
// memory, others compute.
//
// Counter: `sm__warps_active.avg.pct_of_peak_sustained_active`, the share of the places for threads that are
// taken: near 100.
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
  // The last block may have threads for which there is nothing left.
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
