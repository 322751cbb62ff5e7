// A convolution, correct but slow: one thread per output, which reads everything from global memory.
//
//   y[n][m][p][q] = sum over c, r, s of x[n][c][p + r][q + s] * k[m][c][r][s]
//
// Arrays are row-major: the last index is the fastest. x has B images of C channels, H rows and W columns. k
// has M filters of C channels and K x K taps. y has B images of M channels, H_out = H - K + 1 rows and
// W_out = W - K + 1 columns.
//
//   convswap lab run @NAME@        compile, check and time it
//   convswap lab watch @NAME@      again on each save

#include "convswap/lab.h"

// The launch: expressions of integers, + - * / %, ceil_div(a, b), min(a, b), max(a, b) and the sizes
// B M C H W K H_out W_out. Grid and block have up to three numbers; shared is in bytes.
// launch: grid(B, M, ceil_div(H_out, 16) * ceil_div(W_out, 16)) block(16, 16) shared(0)

__global__ void forward(float* y, const float* x, const float* k, int B, int M, int C, int H, int W, int K) {
  const int H_out = H - K + 1, W_out = W - K + 1;
  const int n = blockIdx.x, m = blockIdx.y;
  // A block computes a tile of 16 x 16 outputs; the third index of the grid counts the tiles of an image.
  const int tiles_across = convswap::ceil_div(W_out, 16);
  const int p = blockIdx.z / tiles_across * 16 + threadIdx.y;
  const int q = blockIdx.z % tiles_across * 16 + threadIdx.x;
  // Tiles at the edges may have more threads than outputs.
  if (p >= H_out || q >= W_out) return;

  float sum = 0.0f;
  for (int c = 0; c < C; ++c) {
    for (int r = 0; r < K; ++r) {
      for (int s = 0; s < K; ++s) {
        sum += x[((n * C + c) * H + p + r) * W + q + s] * k[((m * C + c) * K + r) * K + s];
      }
    }
  }
  y[((n * M + m) * H_out + p) * W_out + q] = sum;
}
