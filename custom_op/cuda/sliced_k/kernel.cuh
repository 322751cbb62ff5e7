#pragma once

// The kernel of sliced_k; see sliced_k.cc.

#include "conv/small_floats.h"  // names of the instances' formats
#include "cuda/epilogue/activations.cuh"
#include "cuda/primitives/dependent_launch.cuh"
#include "cuda/primitives/global_memory.cuh"
#include "cuda/primitives/naive_conv.cuh"
#include "cuda/sliced_k/arguments.h"
#include "cuda/sliced_k/operands.cuh"

namespace convswap::sliced_k {

// Output pixel, from its index in all images.
struct Pixel {
  int image, plane_index, row, column;

  template <typename Element>
  __device__ Pixel(const Arguments<Element>& a, unsigned number)
      : image(a.plane.quotient_of_any(number)),
        plane_index(static_cast<int>(number - image * a.plane.divisor)),
        row(a.width.quotient_of_any(plane_index)),
        column(plane_index - row * static_cast<int>(a.width.divisor)) {}
};

// Index in the block of column `column` of a tile. With vector loads, a thread's pixels are adjacent.
template <int kPixelTiles>
__device__ inline int pixel_of(bool vectorized, int tile, int column) {
  return vectorized ? kPixelTiles * column + tile : kTilePixels * tile + column;
}

// Loads the input elements of a lane's output pixels, step by step. A lane has one pixel of each tile.
template <typename Format, bool kOneTap, int kPixelTiles>
class PixelLoader {
 public:
  using Operands = MmaOperands<Format>;
  using Element = typename Operands::Element;
  using Registers = unsigned[kPixelTiles][4];

  __device__ PixelLoader(const Arguments<Element>& a, int group, unsigned first, int lane)
      : a_(a), depth_offset_(lane % 4 * 4) {
    const unsigned long long x = global_address(a.x) + static_cast<long long>(group) * a.channels *
                                                           a.input_plane * static_cast<int>(sizeof(Element));
#pragma unroll
    for (int t = 0; t < kPixelTiles; ++t) {
      const unsigned number = first + pixel_of<kPixelTiles>(a.vectorizes_pixel_loads, t, lane / 4);
      const bool is_pixel = number < a.pixels;
      const Pixel pixel(a, is_pixel ? number : 0u);
      const int row = pixel.row * a.stride_height - a.pad_height;
      const int column = pixel.column * a.stride_width - a.pad_width;
      bases_[t] = x + (static_cast<long long>(pixel.image) * a.in_channels * a.input_plane +
                       row * a.input_width + column) *
                          static_cast<int>(sizeof(Element));
      // Places every tap of a nonexistent pixel outside the image.
      row_[t] = is_pixel ? row : kOutside;
      column_[t] = column;
    }
  }

  __device__ void load(int step, Registers& to) const {
    const int first = step * kStepDepth + depth_offset_;
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
  // Row outside every image. The sum of kOutside and a row or a tap's row (both below 2^28), or of kOutside
  // twice, is negative.
  static constexpr int kOutside = -(1 << 30);

  __device__ void load_channel(int channel, int i, Registers& to) const {
    const bool in_bounds = channel < a_.depth;
    const unsigned plane = a_.input_plane * static_cast<unsigned>(sizeof(Element));
    if (a_.vectorizes_pixel_loads) {
      const unsigned long long from = address_at(bases_[0], channel, plane);
      const bool is_wanted = in_bounds && row_[0] >= 0;
      constexpr int kBytes = kPixelTiles * static_cast<int>(sizeof(Element));
      if constexpr (kBytes == 2) {
        to[0][i] = 0;
        Operands::load_one(is_wanted, from, to[0][i]);
      } else if constexpr (kBytes == 4) {
        to[0][i] = 0;
        load_global_if(is_wanted, from, to[0][i]);
      } else if constexpr (kBytes == 8) {
        uint2 both{};
        load_global_if(is_wanted, from, both);
        to[0][i] = both.x, to[1][i] = both.y;
      } else {
        uint4 all{};
        load_global_if(is_wanted, from, all);
        to[0][i] = all.x, to[1][i] = all.y, to[2][i] = all.z, to[3][i] = all.w;
      }
      return;
    }
#pragma unroll
    for (int t = 0; t < kPixelTiles; ++t) {
      to[t][i] = 0;
      Operands::load_one(in_bounds && row_[t] >= 0, address_at(bases_[t], channel, plane), to[t][i]);
    }
  }

  __device__ void load_tap(int number, int i, Registers& to) const {
    const int channel = a_.taps.quotient(number);
    const int tap = number - channel * static_cast<int>(a_.taps.divisor);
    const int tap_row = a_.columns.quotient(tap);
    const int tap_column = tap - tap_row * static_cast<int>(a_.columns.divisor);
    const int down = tap_row * a_.dilation_height, across = tap_column * a_.dilation_width;
    const int down_or_outside = number < a_.depth ? down : kOutside;
    const long long tap_offset =
        (static_cast<long long>(channel) * a_.input_plane + down * a_.input_width + across) *
        static_cast<int>(sizeof(Element));
#pragma unroll
    for (int t = 0; t < kPixelTiles; ++t) {
      const bool is_inside =
          static_cast<unsigned>(row_[t] + down_or_outside) < static_cast<unsigned>(a_.input_height) &&
          static_cast<unsigned>(column_[t] + across) < static_cast<unsigned>(a_.input_width);
      to[t][i] = 0;
      Operands::load_one(is_inside, bases_[t] + tap_offset, to[t][i]);
    }
  }

  const Arguments<Element>& a_;
  int depth_offset_;
  unsigned long long bases_[kPixelTiles];
  int row_[kPixelTiles], column_[kPixelTiles];
};

// Naive evaluation of one output's accumulator. Split operands turn an infinity into NaN, because the
// infinity is also multiplied by the smaller part of the other operand, which may be zero or of opposite
// sign.
template <typename Element>
__device__ __noinline__ float naive_sum(const Arguments<Element>& a, const Pixel& pixel, int filter) {
  return naive_conv_sum<Element, float>(a, a.naive_conv, pixel.image, filter, 0, pixel.row, pixel.column, 0,
                                        a.channels);
}

// Reduces the accumulators of a block's warps through shared memory, one tile per warp. Accumulators are
// added in the order of the warps, so the result is deterministic.
template <int kFilterTiles, int kPixelTiles, int kWarps>
struct CrossWarpReduction {
  static constexpr int kFilters = kFilterTiles * kTileFilters;
  static constexpr int kPixels = kPixelTiles * kTilePixels;
  static constexpr int kPitch = accumulator_pitch(kPixelTiles);
  static constexpr int kThreads = kWarps * kWarpSize;

  // Stores a warp's accumulators, tiles side by side. cuda/primitives/mma.cuh has the fragment layout.
  static __device__ void store_partial(float* shared, int warp, int lane,
                                       const float (&accumulators)[kFilterTiles][kPixelTiles][4]) {
    float* const warp_tile = shared + warp * (kFilters * kPitch) + lane / 4 * kPitch + lane % 4 * 2;
#pragma unroll
    for (int f = 0; f < kFilterTiles; ++f) {
#pragma unroll
      for (int t = 0; t < kPixelTiles; ++t) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          float* const to = warp_tile + (f * kTileFilters + half * 8) * kPitch + t * kTilePixels;
          *reinterpret_cast<float2*>(to) =
              make_float2(accumulators[f][t][2 * half], accumulators[f][t][2 * half + 1]);
        }
      }
    }
  }

  // Adds bias and residual, applies the activation and stores. Adjacent threads have adjacent pixels.
  template <bool kSplits, typename Element>
  static __device__ void reduce_and_store(const Arguments<Element>& a, const float* shared, int group,
                                          int first_filter, unsigned first_pixel) {
    static_assert(kThreads % kPixels == 0);
    const int within = static_cast<int>(threadIdx.x) % kPixels;
    const unsigned number = first_pixel + within;
    if (number >= a.pixels) return;
    const Pixel pixel(a, number);
    const int smem_column =
        a.vectorizes_pixel_loads ? within % kPixelTiles * kTilePixels + within / kPixelTiles : within;
    const int filters_left = a.filters - first_filter;
#pragma unroll 1
    for (int f = static_cast<int>(threadIdx.x) / kPixels; f < kFilters && f < filters_left;
         f += kThreads / kPixels) {
      float accumulators[] = {0.0f};
      float& sum = accumulators[0];
#pragma unroll
      for (int warp = 0; warp < kWarps; ++warp) sum += shared[(warp * kFilters + f) * kPitch + smem_column];
      const int filter = group * a.filters + first_filter + f;
      if constexpr (kSplits) {
        if (!(fabsf(sum) < infinity())) sum = naive_sum(a, pixel, filter);
      }
      if (a.b != nullptr) sum += static_cast<float>(a.b[filter]);
      const long long at = (static_cast<long long>(pixel.image) * a.out_channels + filter) * a.output_plane +
                           pixel.plane_index;
      if (a.z != nullptr) sum += static_cast<float>(a.z[at]);
      apply_activation(a.epilogue, accumulators);
      a.y[at] = static_cast<Element>(sum);
    }
  }
};

// Registers of one pipeline stage: the operands of one step of a warp.
template <typename FilterLoads, typename PixelLoads>
struct Stage {
  typename FilterLoads::Registers filters;
  typename PixelLoads::Registers pixels;
};

template <typename Format, int kFilterTiles, int kPixelTiles, typename StageRegisters>
__device__ inline void multiply_add(float (&accumulators)[kFilterTiles][kPixelTiles][4],
                                    const StageRegisters& stage, bool vectorized) {
  using Operands = MmaOperands<Format>;
  typename Operands::Fragment upper[kFilterTiles], lower[kFilterTiles];
#pragma unroll
  for (int f = 0; f < kFilterTiles; ++f) {
    upper[f] = Operands::fragment_of(stage.filters[2 * f]);
    lower[f] = Operands::fragment_of(stage.filters[2 * f + 1]);
  }
#pragma unroll
  for (int t = 0; t < kPixelTiles; ++t) {
    const typename Operands::Fragment pixel = Operands::fragment_of(stage.pixels, t, vectorized);
#pragma unroll
    for (int f = 0; f < kFilterTiles; ++f) {
      Operands::multiply_add(accumulators[f][t], upper[f], lower[f], pixel);
    }
  }
}

template <typename Format, bool kOneTap, int kFilterTiles, int kPixelTiles, int kWarps>
__global__ void __launch_bounds__(kWarps* kWarpSize)
    kernel(const __grid_constant__ Arguments<typename MmaOperands<Format>::Element> a) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#error "sliced_k needs compute capability 8.0 or newer"
#else
  using FilterLoads = FilterLoader<Format, kFilterTiles>;
  using PixelLoads = PixelLoader<Format, kOneTap, kPixelTiles>;
  using Reduction = CrossWarpReduction<kFilterTiles, kPixelTiles, kWarps>;
  extern __shared__ __align__(16) unsigned char shared[];
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize,
            lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int group = a.filter_blocks.quotient_of_any(blockIdx.y);
  const int first_filter =
      (static_cast<int>(blockIdx.y) - group * static_cast<int>(a.filter_blocks.divisor)) *
      Reduction::kFilters;
  const unsigned first_pixel = blockIdx.x * Reduction::kPixels;
  const FilterLoads filters(a, group, first_filter, lane);
  const PixelLoads pixels(a, group, first_pixel, lane);
  griddepcontrol_wait_unless(a.weights_are_constant);
  // Loads of kStages - 1 steps are in flight while one step is multiplied.
  constexpr int kStages = register_stages(kFilterTiles, kPixelTiles, kWarps, MmaOperands<Format>::kSplits);
  Stage<FilterLoads, PixelLoads> stages[kStages];
  const auto for_each_prologue_stage = [&](const auto& load) {
#pragma unroll
    for (int i = 0; i < kStages - 1; ++i) {
      if (warp + i * kWarps < a.steps) load(warp + i * kWarps, stages[i]);
    }
  };
  for_each_prologue_stage(
      [&](int step, Stage<FilterLoads, PixelLoads>& to) { filters.load(step, to.filters); });
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  for_each_prologue_stage(
      [&](int step, Stage<FilterLoads, PixelLoads>& to) { pixels.load(step, to.pixels); });
  float accumulators[kFilterTiles][kPixelTiles][4];
#pragma unroll
  for (int f = 0; f < kFilterTiles; ++f) {
#pragma unroll
    for (int t = 0; t < kPixelTiles; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) accumulators[f][t][i] = 0.0f;
    }
  }
  const auto load = [&](int step, Stage<FilterLoads, PixelLoads>& to) {
    if (step >= a.steps) return;
    filters.load(step, to.filters);
    pixels.load(step, to.pixels);
  };
  for (int first = warp; first < a.steps; first += kStages * kWarps) {
#pragma unroll
    for (int i = 0; i < kStages; ++i) {
      const int step = first + i * kWarps;
      if (step >= a.steps) break;
      load(step + (kStages - 1) * kWarps, stages[(i + kStages - 1) % kStages]);
      multiply_add<Format>(accumulators, stages[i], a.vectorizes_pixel_loads);
    }
  }
  float* const partial_sums = reinterpret_cast<float*>(shared);
  Reduction::store_partial(partial_sums, warp, lane, accumulators);
  __syncthreads();
  Reduction::template reduce_and_store<MmaOperands<Format>::kSplits>(a, partial_sums, group, first_filter,
                                                                     first_pixel);
#endif
}

}  // namespace convswap::sliced_k
