#pragma once

// Rung 6. A grid of (batch, 1, 1) instead of (batch, filters, 1)
//
// Idea: In rungs 4 and 5 an image is copied once for every filter: 50 blocks fetch the same 28×28 pixels. Now
// a block takes one image, copies it once, and computes one filter after the other. Two barriers surround the
// copy of each filter. At the first barrier all threads have finished the previous filter, so it may be
// overwritten. At the second barrier the new filter is complete, and so is the image.
//
// Gain: One copy of the image instead of one for each filter, and far fewer blocks to start. This pays only
// because the batch has more than enough images to fill the GPU. A batch of 1 would leave all multiprocessors
// idle but one.
//
// Slower: For an image of one channel the copies were cheap, and they ran while other blocks computed. Two
// barriers for each filter are expensive if a filter has only 25 taps and a thread has one output: all
// threads wait twice for every 25 multiplications.
//
// Counter: `smsp__average_warps_issue_stalled_barrier_per_issue_active.ratio`, how long warps wait at
// barriers; and `lts__t_sectors_op_read.sum`, the sectors read from the L2 cache: fewer, by the copies saved.
//
// Reported: ece408-2017-high: 0.2529 s, against 0.448 s with a block for each filter.
//
// Launch: grid(B) block(1024) shared(4 * C * (H * W + K * K))

#include "cpu/tutorial/ladder/convolution.h"

namespace convswap::ladder {

extern __shared__ float shared[];

__global__ void block_per_image(Convolution conv) {
  const int n = blockIdx.x;
  const int pixels = conv.channels * conv.height * conv.width;
  const int taps = conv.channels * conv.filter_height * conv.filter_width;
  const int outputs = conv.out_height * conv.out_width;
  float* const image = shared;
  float* const filter = shared + pixels;

  for (int i = threadIdx.x; i < pixels; i += blockDim.x) image[i] = conv.x[n * pixels + i];

  for (int k = 0; k < conv.filters; ++k) {
    __syncthreads();
    for (int i = threadIdx.x; i < taps; i += blockDim.x) filter[i] = conv.w[k * taps + i];
    __syncthreads();

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
}

}  // namespace convswap::ladder
