#pragma once

// Rung 1. Seven loops on the processor
//
// Idea: A convolution layer slides small filters over images. An image has *channels*, such as red, green and
// blue, and a filter has a square of numbers, its *taps*, for each of them; images are computed many at a
// time, a *batch*. An output is a sum: a filter is laid on a window of the image, every number under it is
// multiplied by the tap there, and the products are added, and with them one number of the filter's own, its
// *bias*. That is seven loops: over the images, the filters, the rows and columns of the result, and, inside,
// over the channels, rows and columns of the filter. Nothing here is clever, so that it says what all the
// other rungs have to compute.
//
// Gain: Nothing yet: this is where the course began. One core does one multiplication and one addition at a
// time, and waits for the sum before it can add to it again.
//
// Counter: Nsight Compute looks at kernels on the card. On the processor `perf stat -e instructions,cycles`
// shows few instructions per cycle, because each addition waits for the one before.
//
// Reported: ece408-2017-high: 9.1 to 17.5 s. ece408-2019fa: 11.2 s + 60.1 s.
//
// No copy: it runs on the processor

#include "cpu/tutorial/ladder/convolution.h"

namespace convswap::ladder {

inline void loops(const Convolution& conv) {
  for (int n = 0; n < conv.batch; ++n) {
    for (int k = 0; k < conv.filters; ++k) {
      for (int p = 0; p < conv.out_height; ++p) {
        for (int q = 0; q < conv.out_width; ++q) {
          float sum = conv.b[k];
          for (int c = 0; c < conv.channels; ++c) {
            for (int r = 0; r < conv.filter_height; ++r) {
              for (int s = 0; s < conv.filter_width; ++s) {
                sum += conv.x[((n * conv.channels + c) * conv.height + p + r) * conv.width + q + s] *
                       conv.w[((k * conv.channels + c) * conv.filter_height + r) * conv.filter_width + s];
              }
            }
          }
          conv.y[((n * conv.filters + k) * conv.out_height + p) * conv.out_width + q] = sum;
        }
      }
    }
  }
}

}  // namespace convswap::ladder
