#pragma once

// Rung 5. Flat blocks of 1024×1 threads
//
// Idea: A block of 32×32 threads on an image of 28 columns leaves 4 of 32 columns idle while it copies, and 8
// of 32 while it computes 24 columns. A flat block has no columns. Its threads take the pixels by index:
// first 0 to 1,023, then 1,024 to 2,047, and so on. Each thread divides its index by the width to find its
// row and column. Everything else is as in rung 4.
//
// Gain: The threads of a *warp*, 32 neighbours, execute every instruction together, whether all of them have
// work or only one. For 24×24 outputs, all threads of 18 warps compute, and 14 warps have nothing to do and
// cost almost nothing. In rung 4, 24 warps compute with 8 idle threads each. The copy no longer stops at the
// end of each row, so the GPU fetches complete sectors of 32 bytes.
//
// Slower: Here a division costs more than idle columns did: dividing by a width that is known only at run
// time takes some twenty instructions, next to 25 multiplications. Rung 9 lets the compiler remove these
// divisions.
//
// Counter: `smsp__thread_inst_executed_per_inst_executed.ratio`, how many of a warp's 32 threads take part in
// an instruction on average: closer to 32 than in rung 4.
//
// Reported: ece408-2017-high: 2.5 s to 0.3 s, together with the rung before.
//
// Launch: grid(B, M) block(1024) shared(4 * C * (H * W + K * K))

#include "cpu/tutorial/ladder/convolution.h"

namespace convswap::ladder {

extern __shared__ float shared[];

__global__ void flat_blocks(Convolution conv) {
  const int n = blockIdx.x, k = blockIdx.y;
  const int pixels = conv.channels * conv.height * conv.width;
  const int taps = conv.channels * conv.filter_height * conv.filter_width;
  float* const image = shared;
  float* const filter = shared + pixels;

  for (int i = threadIdx.x; i < pixels; i += blockDim.x) image[i] = conv.x[n * pixels + i];
  for (int i = threadIdx.x; i < taps; i += blockDim.x) filter[i] = conv.w[k * taps + i];
  __syncthreads();

  const int outputs = conv.out_height * conv.out_width;
  for (int i = threadIdx.x; i < outputs; i += blockDim.x) {
    const int p = i / conv.out_width, q = i % conv.out_width;
    float sum = conv.b[k];
    for (int c = 0; c < conv.channels; ++c) {
      for (int r = 0; r < conv.filter_height; ++r) {
        for (int s = 0; s < conv.filter_width; ++s) {
          sum += image[(c * conv.height + p + r) * conv.width + q + s] *
                 filter[(c * conv.filter_height + r) * conv.filter_width + s];
        }
      }
    }
    conv.y[(n * conv.filters + k) * outputs + i] = sum;
  }
}

}  // namespace convswap::ladder
