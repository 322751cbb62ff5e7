#pragma once

// The kernel of sliced_k; see sliced_k.cc.

#include "conv/small_floats.h"  // what its instances are named by
#include "cuda/primitives/dependent_launch.cuh"
#include "cuda/sliced_k/filters.cuh"
#include "cuda/sliced_k/pixels.cuh"
#include "cuda/sliced_k/results.cuh"

namespace convswap::sliced_k {

// What a warp multiplies in a step.
template <typename OwnFilters, typename OwnPixels>
struct Step {
  typename OwnFilters::Step filters;
  typename OwnPixels::Step pixels;
};

template <typename Format, int kFilterTiles, int kPixelTiles, typename OwnStep>
__device__ inline void multiply_add(float (&sums)[kFilterTiles][kPixelTiles][4], const OwnStep& step,
                                    bool together) {
  using Of = Numbers<Format>;
  typename Of::Four upper[kFilterTiles], lower[kFilterTiles];
#pragma unroll
  for (int f = 0; f < kFilterTiles; ++f) {
    upper[f] = Of::four_of(step.filters[2 * f]);
    lower[f] = Of::four_of(step.filters[2 * f + 1]);
  }
#pragma unroll
  for (int t = 0; t < kPixelTiles; ++t) {
    const typename Of::Four pixel = Of::four_of(step.pixels, t, together);
#pragma unroll
    for (int f = 0; f < kFilterTiles; ++f) Of::multiply_add(sums[f][t], upper[f], lower[f], pixel);
  }
}

template <typename Format, bool kOneTap, int kFilterTiles, int kPixelTiles, int kWarps>
__global__ void __launch_bounds__(kWarps* kWarp)
    kernel(const __grid_constant__ Arguments<typename Numbers<Format>::Element> a) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#error "sliced_k needs compute capability 8.0 or newer"
#else
  using OwnFilters = Filters<Format, kFilterTiles>;
  using OwnPixels = Pixels<Format, kOneTap, kPixelTiles>;
  using OwnMeeting = Meeting<kFilterTiles, kPixelTiles, kWarps>;
  extern __shared__ __align__(16) unsigned char shared[];
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  const int group = a.filter_blocks.quotient_of_any(blockIdx.y);
  const int first_filter =
      (static_cast<int>(blockIdx.y) - group * static_cast<int>(a.filter_blocks.divisor)) *
      OwnMeeting::kFilters;
  const unsigned first_pixel = blockIdx.x * OwnMeeting::kPixels;
  const OwnFilters filters(a, group, first_filter, lane);
  const OwnPixels pixels(a, group, first_pixel, lane);
  wait_for_weights(a.weights_stay);
  // Some steps are being loaded while one is multiplied.
  constexpr int kStages = steps_at_once(kFilterTiles, kPixelTiles, kWarps, Numbers<Format>::kSplits);
  Step<OwnFilters, OwnPixels> steps[kStages];
  const auto each_at_first = [&](const auto& load) {
#pragma unroll
    for (int i = 0; i < kStages - 1; ++i) {
      if (warp + i * kWarps < a.steps) load(warp + i * kWarps, steps[i]);
    }
  };
  each_at_first([&](int step, Step<OwnFilters, OwnPixels>& to) { filters.load(step, to.filters); });
  wait_for_kernels_before();
  let_next_kernel_start();
  each_at_first([&](int step, Step<OwnFilters, OwnPixels>& to) { pixels.load(step, to.pixels); });
  float sums[kFilterTiles][kPixelTiles][4];
#pragma unroll
  for (int f = 0; f < kFilterTiles; ++f) {
#pragma unroll
    for (int t = 0; t < kPixelTiles; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[f][t][i] = 0.0f;
    }
  }
  const auto load = [&](int step, Step<OwnFilters, OwnPixels>& to) {
    if (step >= a.steps) return;
    filters.load(step, to.filters);
    pixels.load(step, to.pixels);
  };
  for (int first = warp; first < a.steps; first += kStages * kWarps) {
#pragma unroll
    for (int i = 0; i < kStages; ++i) {
      const int step = first + i * kWarps;
      if (step >= a.steps) break;
      load(step + (kStages - 1) * kWarps, steps[(i + kStages - 1) % kStages]);
      multiply_add<Format>(sums, steps[i], a.loads_pixels_together);
    }
  }
  float* const all_sums = reinterpret_cast<float*>(shared);
  OwnMeeting::put(all_sums, warp, lane, sums);
  __syncthreads();
  OwnMeeting::template store<Numbers<Format>::kSplits>(a, all_sums, group, first_filter, first_pixel);
#endif
}

}  // namespace convswap::sliced_k
