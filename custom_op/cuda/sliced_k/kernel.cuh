#pragma once

// The kernel of sliced_k; see sliced_k.cc.

#include "conv/small_floats.h"  // what its instances are named by
#include "cuda/epilogue/activations.cuh"
#include "cuda/primitives/dependent_launch.cuh"
#include "cuda/primitives/global_memory.cuh"
#include "cuda/primitives/naive_conv.cuh"
#include "cuda/sliced_k/arguments.h"
#include "cuda/sliced_k/operands.cuh"

namespace convswap::sliced_k {

// A pixel of the output by its number through all images.
struct Pixel {
  int image, place, row, column;

  template <typename Element>
  __device__ Pixel(const Arguments<Element>& a, unsigned number)
      : image(a.plane.quotient_of_any(number)),
        place(static_cast<int>(number - image * a.plane.divisor)),
        row(a.width.quotient_of_any(place)),
        column(place - row * static_cast<int>(a.width.divisor)) {}
};

// The number, in its block, of column `column` of a tile: where a thread loads its pixels of a channel
// together they are neighbours.
template <int kPixelTiles>
__device__ inline int pixel_of(bool together, int tile, int column) {
  return together ? kPixelTiles * column + tile : kTilePixels * tile + column;
}

// A lane's pixels of a block, one of each tile, of which it loads what they are multiplied with, step by
// step.
template <typename Format, bool kOneTap, int kPixelTiles>
class Pixels {
 public:
  using Of = Numbers<Format>;
  using Element = typename Of::Element;
  using Step = unsigned[kPixelTiles][4];

  __device__ Pixels(const Arguments<Element>& a, int group, unsigned first, int lane)
      : a_(a), quarter_(lane % 4 * 4) {
    const unsigned long long x = global_address(a.x) + static_cast<long long>(group) * a.channels *
                                                           a.input_plane * static_cast<int>(sizeof(Element));
#pragma unroll
    for (int t = 0; t < kPixelTiles; ++t) {
      const unsigned number = first + pixel_of<kPixelTiles>(a.loads_pixels_together, t, lane / 4);
      const bool exists = number < a.pixels;
      const Pixel pixel(a, exists ? number : 0u);
      const int row = pixel.row * a.stride_height - a.pad_height;
      const int column = pixel.column * a.stride_width - a.pad_width;
      own_[t] = x + (static_cast<long long>(pixel.image) * a.in_channels * a.input_plane +
                     row * a.input_width + column) *
                        static_cast<int>(sizeof(Element));
      // No tap of a pixel that is none lies in an image.
      row_[t] = exists ? row : kNowhere;
      column_[t] = column;
    }
  }

  __device__ void load(int step, Step& to) const {
    const int first = step * kStepDepth + quarter_;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (kOneTap) {
        load_channel(first + i, i, to);
      } else {
        load_tap(first + i, i, to);
      }
    }
  }

 private:
  // Plus a row or a tap's row, which are below 2^28, or once more itself, it is less than none.
  static constexpr int kNowhere = -(1 << 30);

  __device__ void load_channel(int channel, int i, Step& to) const {
    const bool is_there = channel < a_.depth;
    const unsigned plane = a_.input_plane * static_cast<unsigned>(sizeof(Element));
    if (a_.loads_pixels_together) {
      const unsigned long long from = address_at(own_[0], channel, plane);
      const bool exists = is_there && row_[0] >= 0;
      constexpr int kBytes = kPixelTiles * static_cast<int>(sizeof(Element));
      if constexpr (kBytes == 2) {
        to[0][i] = 0;
        Of::load_one(exists, from, to[0][i]);
      } else if constexpr (kBytes == 4) {
        to[0][i] = 0;
        load_global_if(exists, from, to[0][i]);
      } else if constexpr (kBytes == 8) {
        uint2 both{};
        load_global_if(exists, from, both);
        to[0][i] = both.x, to[1][i] = both.y;
      } else {
        uint4 all{};
        load_global_if(exists, from, all);
        to[0][i] = all.x, to[1][i] = all.y, to[2][i] = all.z, to[3][i] = all.w;
      }
      return;
    }
#pragma unroll
    for (int t = 0; t < kPixelTiles; ++t) {
      to[t][i] = 0;
      Of::load_one(is_there && row_[t] >= 0, address_at(own_[t], channel, plane), to[t][i]);
    }
  }

  __device__ void load_tap(int number, int i, Step& to) const {
    const int channel = a_.taps.quotient(number);
    const int tap = number - channel * static_cast<int>(a_.taps.divisor);
    const int tap_row = a_.columns.quotient(tap);
    const int tap_column = tap - tap_row * static_cast<int>(a_.columns.divisor);
    const int down = tap_row * a_.dilation_height, across = tap_column * a_.dilation_width;
    const int down_or_nowhere = number < a_.depth ? down : kNowhere;
    const long long further =
        (static_cast<long long>(channel) * a_.input_plane + down * a_.input_width + across) *
        static_cast<int>(sizeof(Element));
#pragma unroll
    for (int t = 0; t < kPixelTiles; ++t) {
      const bool is_inside =
          static_cast<unsigned>(row_[t] + down_or_nowhere) < static_cast<unsigned>(a_.input_height) &&
          static_cast<unsigned>(column_[t] + across) < static_cast<unsigned>(a_.input_width);
      to[t][i] = 0;
      Of::load_one(is_inside, own_[t] + further, to[t][i]);
    }
  }

  const Arguments<Element>& a_;
  int quarter_;
  unsigned long long own_[kPixelTiles];
  int row_[kPixelTiles], column_[kPixelTiles];
};

// The sum of an output as the definition says. Where numbers are split, an infinity would leave no number: it
// is multiplied also with the smaller part of another, which may be zero or have the other sign.
template <typename Element>
__device__ __noinline__ float sum_as_defined(const Arguments<Element>& a, const Pixel& pixel, int filter) {
  return naive_conv_sum<Element, float>(a, a.definition, pixel.image, filter, 0, pixel.row, pixel.column, 0,
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

  // Of a warp, by the lanes that have them (cuda/primitives/mma.cuh), tile beside tile.
  static __device__ void put(float* shared, int warp, int lane,
                             const float (&accumulators)[kFilterTiles][kPixelTiles][4]) {
    float* const own = shared + warp * (kFilters * kPitch) + lane / 4 * kPitch + lane % 4 * 2;
#pragma unroll
    for (int f = 0; f < kFilterTiles; ++f) {
#pragma unroll
      for (int t = 0; t < kPixelTiles; ++t) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          float* const to = own + (f * kTileFilters + half * 8) * kPitch + t * kTilePixels;
          *reinterpret_cast<float2*>(to) =
              make_float2(accumulators[f][t][2 * half], accumulators[f][t][2 * half + 1]);
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
      float accumulators[] = {0.0f};
      float& sum = accumulators[0];
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
      finish_values(a.following, accumulators);
      a.y[at] = static_cast<Element>(sum);
    }
  }
};

// What a warp multiplies in a step.
template <typename OwnFilters, typename OwnPixels>
struct Step {
  typename OwnFilters::Step filters;
  typename OwnPixels::Step pixels;
};

template <typename Format, int kFilterTiles, int kPixelTiles, typename OwnStep>
__device__ inline void multiply_add(float (&accumulators)[kFilterTiles][kPixelTiles][4], const OwnStep& step,
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
    for (int f = 0; f < kFilterTiles; ++f) Of::multiply_add(accumulators[f][t], upper[f], lower[f], pixel);
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
  griddepcontrol_wait_unless(a.weights_are_constant);
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
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  each_at_first([&](int step, Step<OwnFilters, OwnPixels>& to) { pixels.load(step, to.pixels); });
  float accumulators[kFilterTiles][kPixelTiles][4];
#pragma unroll
  for (int f = 0; f < kFilterTiles; ++f) {
#pragma unroll
    for (int t = 0; t < kPixelTiles; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) accumulators[f][t][i] = 0.0f;
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
      multiply_add<Format>(accumulators, steps[i], a.loads_pixels_together);
    }
  }
  float* const all_sums = reinterpret_cast<float*>(shared);
  OwnMeeting::put(all_sums, warp, lane, accumulators);
  __syncthreads();
  OwnMeeting::template store<Numbers<Format>::kSplits>(a, all_sums, group, first_filter, first_pixel);
#endif
}

}  // namespace convswap::sliced_k
