#pragma once

// The kernel of sliced_k; see sliced_k.cc.

#include "conv/small_floats.h"  // names of the instances' formats
#include "cuda/epilogue/activations.cuh"
#include "cuda/primitives/dependent_launch.cuh"
#include "cuda/primitives/global_memory.cuh"
#include "cuda/primitives/naive_conv.cuh"
#include "cuda/primitives/recomputed.cuh"
#include "cuda/sliced_k/arguments.h"
#include "cuda/sliced_k/operands.cuh"

namespace convswap::sliced_k {

// Output pixel, from its index in all images.
struct Pixel {
  int image, plane_index, row, column;

  template <typename Element>
  __device__ Pixel(const Arguments<Element>& arguments, unsigned number)
      : image(arguments.output_plane_divisor.quotient_of_any(number)),
        plane_index(static_cast<int>(number - image * arguments.output_plane_divisor.divisor)),
        row(arguments.output_width_divisor.quotient_of_any(plane_index)),
        column(plane_index - row * static_cast<int>(arguments.output_width_divisor.divisor)) {}
};

// Index in the block of column `column` of a tile. With vector loads, a thread's pixels are adjacent.
template <int kPixelTiles>
__device__ inline int pixel_of(bool vectorized, int tile, int column) {
  return vectorized ? kPixelTiles * column + tile : kTilePixels * tile + column;
}

// Loads the input elements of a lane's output pixels, step by step. Lanes 4 g to 4 g + 3 share pixel g of
// each pixel tile; each of them loads four of the step's 16 K elements.
template <typename Format, bool kOneTap, int kPixelTiles>
class PixelLoader {
 public:
  using Operands = MmaOperands<Format>;
  using Element = typename Operands::Element;
  using Registers = unsigned[kPixelTiles][4];

  __device__ PixelLoader(const Arguments<Element>& arguments, int group, unsigned first, int lane)
      : arguments_(arguments), k_offset_(lane % 4 * 4) {
    const unsigned long long x =
        global_address(arguments.x) + static_cast<long long>(group) * arguments.channels *
                                          arguments.input_plane * static_cast<int>(sizeof(Element));
#pragma unroll
    for (int t = 0; t < kPixelTiles; ++t) {
      const unsigned number = first + pixel_of<kPixelTiles>(arguments.vectorizes_pixel_loads, t, lane / 4);
      const bool is_pixel = number < arguments.pixels;
      const Pixel pixel(arguments, is_pixel ? number : 0u);
      const int row = pixel.row * arguments.stride_height - arguments.pad_height;
      const int column = pixel.column * arguments.stride_width - arguments.pad_width;
      bases_[t] = x + (static_cast<long long>(pixel.image) * arguments.in_channels * arguments.input_plane +
                       row * arguments.input_width + column) *
                          static_cast<int>(sizeof(Element));
      // Places every tap of a nonexistent pixel outside the image.
      row_[t] = is_pixel ? row : kOutside;
      column_[t] = column;
    }
  }

  __device__ void load(int step, Registers& to) const {
    const int first_k = step * kStepK + k_offset_;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (kOneTap) {
        load_channel(first_k + i, i, to);
      } else {
        load_tap(first_k + i, i, to);
      }
    }
  }

 private:
  // Row outside every image. The sum of kOutside and a row or a tap's row (both below 2^28), or of kOutside
  // twice, is negative.
  static constexpr int kOutside = -(1 << 30);

  __device__ void load_channel(int channel, int i, Registers& to) const {
    const bool in_bounds = channel < arguments_.k_size;
    const unsigned plane = arguments_.input_plane * static_cast<unsigned>(sizeof(Element));
    if (arguments_.vectorizes_pixel_loads) {
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

  __device__ void load_tap(int k, int i, Registers& to) const {
    const int channel = arguments_.taps_divisor.quotient(k);
    const int tap = k - channel * static_cast<int>(arguments_.taps_divisor.divisor);
    const int tap_row = arguments_.filter_width_divisor.quotient(tap);
    const int tap_column = tap - tap_row * static_cast<int>(arguments_.filter_width_divisor.divisor);
    const int down = tap_row * arguments_.dilation_height, across = tap_column * arguments_.dilation_width;
    const int down_or_outside = k < arguments_.k_size ? down : kOutside;
    const long long tap_offset =
        (static_cast<long long>(channel) * arguments_.input_plane + down * arguments_.input_width + across) *
        static_cast<int>(sizeof(Element));
#pragma unroll
    for (int t = 0; t < kPixelTiles; ++t) {
      const bool is_inside =
          static_cast<unsigned>(row_[t] + down_or_outside) < static_cast<unsigned>(arguments_.input_height) &&
          static_cast<unsigned>(column_[t] + across) < static_cast<unsigned>(arguments_.input_width);
      to[t][i] = 0;
      Operands::load_one(is_inside, bases_[t] + tap_offset, to[t][i]);
    }
  }

  const Arguments<Element>& arguments_;
  int k_offset_;
  unsigned long long bases_[kPixelTiles];
  int row_[kPixelTiles], column_[kPixelTiles];
};

// Naive evaluation of one output's sum. Split operands turn an infinity into NaN, because its smaller part is
// inf - inf.
template <typename Element>
__device__ __noinline__ float naive_sum(const Arguments<Element>& arguments, const Pixel& pixel, int filter) {
  return naive_conv_sum<Element, float>(arguments, arguments.naive_conv, pixel.image, filter, 0, pixel.row,
                                        pixel.column, 0, arguments.channels);
}

// Reduction across the warps of a block. Each warp stores its partial sums of the whole block tile in shared
// memory. Then each thread adds the partial sums of its results, in the order of the warps, so the result is
// deterministic.
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

  // Adds the warps' partial sums, and recomputes a sum that is not finite if operands are split. Then adds
  // bias and residual, applies the activation and stores. Adjacent threads have adjacent pixels.
  template <bool kSplitsOperands, typename Element>
  static __device__ void reduce_and_store(const Arguments<Element>& arguments, const float* shared, int group,
                                          int first_filter, unsigned first_pixel) {
    static_assert(kThreads % kPixels == 0);
    const int within = static_cast<int>(threadIdx.x) % kPixels;
    const unsigned number = first_pixel + within;
    if (number >= arguments.pixels) return;
    const Pixel pixel(arguments, number);
    const int smem_column =
        arguments.vectorizes_pixel_loads ? within % kPixelTiles * kTilePixels + within / kPixelTiles : within;
    const int filters_left = arguments.filters - first_filter;
#pragma unroll 1
    for (int f = static_cast<int>(threadIdx.x) / kPixels; f < kFilters && f < filters_left;
         f += kThreads / kPixels) {
      float accumulators[] = {0.0f};
      float& sum = accumulators[0];
#pragma unroll
      for (int warp = 0; warp < kWarps; ++warp) sum += shared[(warp * kFilters + f) * kPitch + smem_column];
      const int filter = group * arguments.filters + first_filter + f;
      if constexpr (kSplitsOperands) {
        if (!(fabsf(sum) < infinity())) sum = recomputed(naive_sum(arguments, pixel, filter));
      }
      if (arguments.b != nullptr) sum += static_cast<float>(arguments.b[filter]);
      const long long at =
          (static_cast<long long>(pixel.image) * arguments.out_channels + filter) * arguments.output_plane +
          pixel.plane_index;
      if (arguments.z != nullptr) sum += static_cast<float>(arguments.z[at]);
      apply_activation(arguments.epilogue, accumulators);
      arguments.y[at] = static_cast<Element>(sum);
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
                                    const StageRegisters& stage, bool pixels_are_vectorized) {
  using Operands = MmaOperands<Format>;
  typename Operands::Fragment upper[kFilterTiles], lower[kFilterTiles];
#pragma unroll
  for (int f = 0; f < kFilterTiles; ++f) {
    upper[f] = Operands::fragment_of(stage.filters[2 * f]);
    lower[f] = Operands::fragment_of(stage.filters[2 * f + 1]);
  }
#pragma unroll
  for (int t = 0; t < kPixelTiles; ++t) {
    const typename Operands::Fragment pixel = Operands::fragment_of(stage.pixels, t, pixels_are_vectorized);
#pragma unroll
    for (int f = 0; f < kFilterTiles; ++f) {
      Operands::multiply_add(accumulators[f][t], upper[f], lower[f], pixel);
    }
  }
}

template <typename Format, bool kOneTap, int kFilterTiles, int kPixelTiles, int kWarps>
__global__ void __launch_bounds__(kWarps* kWarpSize)
    kernel(const __grid_constant__ Arguments<typename MmaOperands<Format>::Element> arguments) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#error "sliced_k needs compute capability 8.0 or newer"
#else
  using FilterLoads = FilterLoader<Format, kFilterTiles>;
  using PixelLoads = PixelLoader<Format, kOneTap, kPixelTiles>;
  using Reduction = CrossWarpReduction<kFilterTiles, kPixelTiles, kWarps>;
  extern __shared__ __align__(16) unsigned char shared[];
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize,
            lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int group = arguments.filter_blocks.quotient_of_any(blockIdx.y);
  const int first_filter =
      (static_cast<int>(blockIdx.y) - group * static_cast<int>(arguments.filter_blocks.divisor)) *
      Reduction::kFilters;
  const unsigned first_pixel = blockIdx.x * Reduction::kPixels;
  const FilterLoads filter_loader(arguments, group, first_filter, lane);
  const PixelLoads pixel_loader(arguments, group, first_pixel, lane);
  griddepcontrol_wait_unless(arguments.weights_are_constant);
  // Loads of kStages - 1 steps are in flight while one step is multiplied.
  constexpr int kStages =
      register_stages(kFilterTiles, kPixelTiles, kWarps, MmaOperands<Format>::kSplitsOperands);
  Stage<FilterLoads, PixelLoads> stages[kStages];
  const auto for_each_prologue_stage = [&](const auto& load) {
#pragma unroll
    for (int i = 0; i < kStages - 1; ++i) {
      if (warp + i * kWarps < arguments.steps) load(warp + i * kWarps, stages[i]);
    }
  };
  for_each_prologue_stage(
      [&](int step, Stage<FilterLoads, PixelLoads>& to) { filter_loader.load(step, to.filters); });
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  for_each_prologue_stage(
      [&](int step, Stage<FilterLoads, PixelLoads>& to) { pixel_loader.load(step, to.pixels); });
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
    if (step >= arguments.steps) return;
    filter_loader.load(step, to.filters);
    pixel_loader.load(step, to.pixels);
  };
  for (int first = warp; first < arguments.steps; first += kStages * kWarps) {
#pragma unroll
    for (int i = 0; i < kStages; ++i) {
      const int step = first + i * kWarps;
      if (step >= arguments.steps) break;
      load(step + (kStages - 1) * kWarps, stages[(i + kStages - 1) % kStages]);
      multiply_add<Format>(accumulators, stages[i], arguments.vectorizes_pixel_loads);
    }
  }
  float* const partial_sums = reinterpret_cast<float*>(shared);
  Reduction::store_partial(partial_sums, warp, lane, accumulators);
  __syncthreads();
  Reduction::template reduce_and_store<MmaOperands<Format>::kSplitsOperands>(arguments, partial_sums, group,
                                                                             first_filter, first_pixel);
#endif
}

}  // namespace convswap::sliced_k
