#pragma once

#include "cuda/epilogue/activations.cuh"
#include "cuda/primitives/naive_conv.cuh"
#include "cuda/sliced_k/arguments.h"
#include "cuda/sliced_k/layout.h"
#include "cuda/sliced_k/pixels.cuh"

namespace convswap::sliced_k {

// The sum of an output as the definition says. Where numbers are split, an infinity would leave no number: it
// is multiplied also with the smaller part of another, which may be zero or have the other sign.
template <typename Element>
__device__ __noinline__ float sum_as_defined(const Arguments<Element>& a, const Pixel& pixel, int filter) {
  return defined_sum<Element, float>(a, a.definition, pixel.image, filter, 0, pixel.row, pixel.column, 0,
                                     a.channels);
}

// The sums of a block's warps meet in shared memory, a tile of each warp behind the other, and are added in
// the order of the warps, so that the result is the same each time.
template <int kFilterTiles, int kPixelTiles, int kWarps>
struct Meeting {
  static constexpr int kFilters = kFilterTiles * kTileFilters;
  static constexpr int kPixels = kPixelTiles * kTilePixels;
  static constexpr int kPitch = sums_pitch(kPixelTiles);
  static constexpr int kThreads = kWarps * kWarp;

  // Of a warp, by the lanes that have them (cuda/primitives/tensor_core.cuh), tile beside tile.
  static __device__ void put(float* shared, int warp, int lane,
                             const float (&sums)[kFilterTiles][kPixelTiles][4]) {
    float* const own = shared + warp * (kFilters * kPitch) + lane / 4 * kPitch + lane % 4 * 2;
#pragma unroll
    for (int f = 0; f < kFilterTiles; ++f) {
#pragma unroll
      for (int t = 0; t < kPixelTiles; ++t) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          float* const to = own + (f * kTileFilters + half * 8) * kPitch + t * kTilePixels;
          *reinterpret_cast<float2*>(to) = make_float2(sums[f][t][2 * half], sums[f][t][2 * half + 1]);
        }
      }
    }
  }

  // Residual, activation, and out they go: neighbouring threads have neighbouring pixels.
  template <bool kSplits, typename Element>
  static __device__ void store(const Arguments<Element>& a, const float* shared, int group, int first_filter,
                               unsigned first_pixel) {
    static_assert(kThreads % kPixels == 0);
    const int within = static_cast<int>(threadIdx.x) % kPixels;
    const unsigned number = first_pixel + within;
    if (number >= a.pixels) return;
    const Pixel pixel(a, number);
    const int place =
        a.loads_pixels_together ? within % kPixelTiles * kTilePixels + within / kPixelTiles : within;
    const int left = a.filters - first_filter;
#pragma unroll 1
    for (int f = static_cast<int>(threadIdx.x) / kPixels; f < kFilters && f < left; f += kThreads / kPixels) {
      float sums[] = {0.0f};
      float& sum = sums[0];
#pragma unroll
      for (int warp = 0; warp < kWarps; ++warp) sum += shared[(warp * kFilters + f) * kPitch + place];
      const int filter = group * a.filters + first_filter + f;
      if constexpr (kSplits) {
        if (!(fabsf(sum) < infinity())) sum = sum_as_defined(a, pixel, filter);
      }
      if (a.b != nullptr) sum += static_cast<float>(a.b[filter]);
      const long long at =
          (static_cast<long long>(pixel.image) * a.out_channels + filter) * a.output_plane + pixel.place;
      if (a.z != nullptr) sum += static_cast<float>(a.z[at]);
      finish_values(a.following, sums);
      a.y[at] = static_cast<Element>(sum);
    }
  }
};

}  // namespace convswap::sliced_k
