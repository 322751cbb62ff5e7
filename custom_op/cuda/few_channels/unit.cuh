#pragma once

// A warp's unit of work: multiply, and store the results.

#include "cuda/epilogue/activations.cuh"
#include "cuda/few_channels/arguments.h"
#include "cuda/primitives/global_memory.cuh"
#include "cuda/primitives/mma.cuh"
#include "cuda/primitives/registers.cuh"
#include "cuda/primitives/shared_memory.cuh"
#include "cuda/primitives/tensor_core_formats.cuh"

namespace convswap::few_channels {

// Columns of a bundle that the outputs of a quad read, of both halves of the tile. The mma's A registers of
// the two halves are contiguous.
template <int kBundle, int kTaps>
struct BundleColumns {
  static constexpr int kColumns = kTaps + kQuad - 1;
  unsigned words[kColumns * kBundle];

  __device__ void load(const unsigned* source) {
    // A single tap of a dilated filter may start at any column; other lines start at 16-byte boundaries.
    constexpr int kWords = kColumns * kBundle;
    constexpr int kAligned = kTaps == 1 && kBundle == 2 ? 0 : kWords / 4 * 4;
#pragma unroll
    for (int i = 0; i < kAligned; i += 4) {
      const uint4 four = *reinterpret_cast<const uint4*>(source + i);
      words[i] = four.x, words[i + 1] = four.y, words[i + 2] = four.z, words[i + 3] = four.w;
    }
#pragma unroll
    for (int i = kAligned; i < kWords; i += 2) {
      const uint2 two = *reinterpret_cast<const uint2*>(source + i);
      words[i] = two.x, words[i + 1] = two.y;
    }
  }
};

// Accumulators of 8 * kAccumulatorTiles folded filters at 64 pixels: eight quads of either half of the tile.
// Pixels are M of the product, folded filters are N.
template <typename Format, int kBundle, int kTaps, int kAccumulatorTiles, bool kNhwc>
struct Unit {
  using Element = typename Format::Element;
  using Number = typename Format::Number;
  static constexpr int kWords = kBundle / 2;  // of one pixel and bundle
  static constexpr int kStepWeights = kTaps * kAccumulatorTiles * 32 * kWords;

  float accumulators[kQuad][kAccumulatorTiles][4];  // [pixel of the quad][accumulator tile][mma register]

  // Quad of a lane. With bundles of two rows, the quads of a quarter-warp must be two apart to avoid bank
  // conflicts.
  static __device__ int quad_of(int lane) {
    const int g = lane / 4;
    return kBundle == 4 ? g : (g & 4) | (g & 1) << 1 | (g & 2) >> 1;
  }

  __device__ void multiply(const Arguments<Element>& problem, const unsigned* pixels,
                           const FilterBundle* bundles, const unsigned* weights) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < kQuad; ++i) {
#pragma unroll
      for (int tile = 0; tile < kAccumulatorTiles; ++tile) {
#pragma unroll
        for (int j = 0; j < 4; ++j) accumulators[i][tile][j] = 0.0f;
      }
    }
    bundles += lane % 4;
    for_each_term<Format, 1>(
        [&] { scale(Format::kCorrectionScale); },
        [&](int term) {
          multiply_steps(problem.steps, pixels + Format::pixel_part(term) * problem.part_words, bundles,
                         weights + Format::weight_part(term) * problem.steps * kStepWeights + lane * kWords);
        });
  }

 private:
  __device__ void scale(float factor) {
#pragma unroll
    for (int i = 0; i < kQuad; ++i) {
#pragma unroll
      for (int tile = 0; tile < kAccumulatorTiles; ++tile) {
#pragma unroll
        for (int j = 0; j < 4; ++j) accumulators[i][tile][j] *= factor;
      }
    }
  }

  __device__ void multiply_steps(int steps, const unsigned* pixels, const FilterBundle* bundles,
                                 const unsigned* weights) {
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
      BundleColumns<kBundle, kTaps> columns;
      columns.load(pixels + bundles[step * kBundlesPerStep].offset);
#pragma unroll
      for (int tap = 0; tap < kTaps; ++tap, weights += 32 * kAccumulatorTiles * kWords) {
        unsigned b[kAccumulatorTiles][kWords];
#pragma unroll
        for (int tile = 0; tile < kAccumulatorTiles; ++tile) {
          if constexpr (kWords == 2) {
            const uint2 two = *reinterpret_cast<const uint2*>(weights + 64 * tile);
            b[tile][0] = two.x, b[tile][1] = two.y;
          } else {
            b[tile][0] = weights[32 * tile];
          }
        }
#pragma unroll
        for (int i = 0; i < kQuad; ++i) {
          const unsigned* a = columns.words + (tap + i) * kBundle;
#pragma unroll
          for (int tile = 0; tile < kAccumulatorTiles; ++tile) {
            if constexpr (kWords == 2) {
              mma_m16n8k16<Number>(accumulators[i][tile], a[0], a[1], a[2], a[3], b[tile][0], b[tile][1]);
            } else {
              mma_m16n8k8<Number>(accumulators[i][tile], a[0], a[1], b[tile][0]);
            }
          }
        }
      }
    }
  }

 public:
  // Multiplies by the inverse of the scales of pixels and weights, and adds the bias.
  __device__ void scale_and_add_bias(const FilterScale* scales, const float* second_factors,
                                     bool needs_second_factor) {
#pragma unroll
    for (int tile = 0; tile < kAccumulatorTiles; ++tile) {
      const int filter = filter_of_column<kNhwc, kAccumulatorTiles, Element>(tile, threadIdx.x % 4 * 2);
      const float4 both = *reinterpret_cast<const float4*>(scales + filter);
      if (Format::kIsScaled && needs_second_factor) {
        const float first = second_factors[filter], second = second_factors[filter + 1];
#pragma unroll
        for (int i = 0; i < kQuad; ++i) {
          accumulators[i][tile][0] *= first, accumulators[i][tile][2] *= first;
          accumulators[i][tile][1] *= second, accumulators[i][tile][3] *= second;
        }
      }
#pragma unroll
      for (int i = 0; i < kQuad; ++i) {
        accumulators[i][tile][0] = fmaf(accumulators[i][tile][0], both.x, both.y);
        accumulators[i][tile][1] = fmaf(accumulators[i][tile][1], both.z, both.w);
        accumulators[i][tile][2] = fmaf(accumulators[i][tile][2], both.x, both.y);
        accumulators[i][tile][3] = fmaf(accumulators[i][tile][3], both.z, both.w);
      }
    }
  }

  // Applies the activation to final accumulators.
  __device__ void activate(const Arguments<Element>& problem) {
    dispatch_activation(problem.epilogue_params, [&](auto activation) {
#pragma unroll
      for (int i = 0; i < kQuad; ++i) {
#pragma unroll
        for (int tile = 0; tile < kAccumulatorTiles; ++tile) activation(accumulators[i][tile]);
      }
    });
  }

  // Destination of a unit's results.
  struct Target {
    const TileInfo& tile;
    Element* y;   // the tile's first pixel of the unit's first filter
    int first;    // first quad of the unit, in each half of the tile
    int filters;  // folded filters from the unit's first to the thread block's last
    bool accumulates;
    bool activates;  // applies the activation after adding
  };

  __device__ void store(const Arguments<Element>& problem, const QuadOffsets* quad_offsets,
                        const Target& target, float* staged) {
    // Only float32 takes more than one pass.
    if constexpr (sizeof(Element) == sizeof(float)) {
      if (target.accumulates) return store<true>(problem, quad_offsets, target, staged);
    }
    store<false>(problem, quad_offsets, target, staged);
  }

 private:
  template <bool kAccumulates>
  __device__ void store(const Arguments<Element>& problem, const QuadOffsets* quad_offsets,
                        const Target& target, float* staged) {
    if constexpr (kNhwc) {
      constexpr int kVector = nhwc_vector(kAccumulatorTiles, sizeof(Element));
      if (problem.store_width == kVector) {
        store_nhwc<kVector, kAccumulates>(problem, quad_offsets, target);
      } else {
        store_nhwc<1, kAccumulates>(problem, quad_offsets, target);
      }
    } else if (problem.store_width == kQuad) {
      store_quads<kAccumulates>(problem, quad_offsets, target);
    } else if (problem.store_width == 2) {
      store_staged<2, kAccumulates>(problem, quad_offsets, target, staged);
    } else {
      store_staged<1, kAccumulates>(problem, quad_offsets, target, staged);
    }
  }

  template <bool kAccumulates, int kWidth>
  static __device__ void store_values(const Arguments<Element>& problem, const Target& target,
                                      unsigned condition, unsigned long long address,
                                      float (&values)[kWidth]) {
    if constexpr (kAccumulates) {
      if (condition != 0) {
        const Element* y = reinterpret_cast<const Element*>(address);
#pragma unroll
        for (int i = 0; i < kWidth; ++i) values[i] += Format::to_float(y[i]);
      }
      if (target.activates) {
        if (problem.epilogue_params.only_clamps) {
          clamp_values(problem.epilogue_params, values);
        } else {  // rare: a call keeps the code small, which is inlined many times
#pragma unroll
          for (float& value : values) value = activated(problem.epilogue_params.epilogue, value);
        }
      }
    }
    store_global_if(condition, address, Format::pack(values));
  }

  // Bit mask of the eight folded filters that have an output inside the image at a quad of a half.
  static __device__ unsigned filter_mask(const TileInfo& tile, int quad, int half) {
    const int quads = half == 1 ? tile.quads[1] : tile.quads[0];
    const int full_quads = half == 1 ? tile.full_quads[1] : tile.full_quads[0];
    return quad < full_quads ? (1u << kMmaN) - 1 : quad < quads ? tile.last_fold_mask : 0;
  }

  // Stores from registers, if rows consist of full, aligned quads.
  template <bool kAccumulates>
  __device__ void store_quads(const Arguments<Element>& problem, const QuadOffsets* quad_offsets,
                              const Target& target) const {
    const unsigned lane = optimization_barrier(threadIdx.x) % 32;
    const int quad = target.first + quad_of(lane);
    const int first_filter = lane % 4 * 2;
    const QuadOffsets offsets = quad_offsets[min(quad, target.tile.quads[0] - 1)];
    unsigned inside[2] = {};
    if (offsets.column * kQuad < target.tile.columns) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        inside[half] = filter_mask(target.tile, quad, half) >> first_filter;
      }
    }
    const int filters_left = target.filters - first_filter;
    unsigned long long y =
        global_address(target.y + offsets.offset +
                       static_cast<long long>(first_filter >> problem.log2_folds) * problem.output_plane +
                       (first_filter & ((1 << problem.log2_folds) - 1)) * problem.output_width);
#pragma unroll
    for (int tile = 0; tile < kAccumulatorTiles; ++tile, y += problem.next_filters * sizeof(Element)) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const bool is_filter = tile * kMmaN + j < filters_left;
        unsigned long long address = j == 0 ? y : address_at(y, problem.odd_filter, sizeof(Element));
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int k = half * 2 + j;
          float values[kQuad] = {accumulators[0][tile][k], accumulators[1][tile][k], accumulators[2][tile][k],
                                 accumulators[3][tile][k]};
          if (half == 1) address = address_at(address, problem.half_offset, sizeof(Element));
          store_values<kAccumulates>(problem, target, is_filter ? inside[half] & 1u << j : 0u, address,
                                     values);
        }
      }
    }
  }

  // Stores from registers to NHWC: a lane has neighbouring filters of each pixel, and its four pixels are
  // `out_channels` elements apart.
  template <int kWidth, bool kAccumulates>
  __device__ void store_nhwc(const Arguments<Element>& problem, const QuadOffsets* quad_offsets,
                             const Target& target) const {
    const unsigned lane = optimization_barrier(threadIdx.x) % 32;
    const int quad = target.first + quad_of(lane);
    const int first_filter = filter_of_column<true, kAccumulatorTiles, Element>(0, lane % 4 * 2);
    const int filters_left = target.filters - first_filter;
    const QuadOffsets offsets = quad_offsets[min(quad, target.tile.quads[0] - 1)];
    const int columns_left = target.tile.columns - offsets.column * kQuad;
    const unsigned long long y = global_address(target.y + (offsets.offset + first_filter));
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int pixels = filter_mask(target.tile, quad, half) != 0 ? columns_left : 0;
      unsigned long long pixel = half == 0 ? y : address_at(y, problem.half_offset, sizeof(Element));
#pragma unroll
      for (int i = 0; i < kQuad; ++i) {
#pragma unroll
        for (int tile = 0; tile < kAccumulatorTiles; tile += (kWidth + 1) / 2) {
#pragma unroll
          for (int j = 0; j < 2; j += kWidth) {
            const int filter = filter_of_column<true, kAccumulatorTiles, Element>(tile, j);
            float values[kWidth];
#pragma unroll
            for (int v = 0; v < kWidth; ++v) {
              values[v] = accumulators[i][tile + (j + v) / 2][half * 2 + (j + v) % 2];
            }
            store_values<kAccumulates>(problem, target, i < pixels && filter < filters_left,
                                       pixel + filter * sizeof(Element), values);
          }
        }
        pixel = address_at(pixel, problem.out_channels, sizeof(Element));
      }
    }
  }

  // Stores through shared memory, so that a warp stores neighbouring pixels at any alignment. Rows of a width
  // not divisible by four would otherwise be stored in single words, each a partial sector write. Four
  // folded filters pass at a time, one from each of four lanes, which leaves more shared memory to the tile.
  // XOR with quad_swizzle permutes the quads of a folded filter, so that the 16-byte stores of a quarter-warp
  // (four folded filters and two quads) have no bank conflicts.
  static __device__ constexpr int quad_swizzle(int t) {
    return kBundle == 4 ? 2 * t : (t & 1) | (t & 2) << 1;
  }

  template <int kWidth, bool kAccumulates>
  __device__ void store_staged(const Arguments<Element>& problem, const QuadOffsets* quad_offsets,
                               const Target& target, float* staged) const {
    constexpr int kPixels = kQuad * kQuadsPerUnit;
    constexpr int kRounds = 2 / kWidth;
    constexpr int kFilters = kMmaN / 2;  // at a time
    const unsigned lane = optimization_barrier(threadIdx.x) % 32;
    const int quad_in_unit = lane * kWidth % kPixels / kQuad;
    const int quad = target.first + quad_in_unit;
    const int pixel = lane * kWidth % kQuad;
    const QuadOffsets offsets = quad_offsets[min(quad, target.tile.quads[0] - 1)];
    unsigned inside[kRounds] = {};
    if (offsets.column * kQuad + pixel < target.tile.columns) {
#pragma unroll
      for (int round = 0; round < kRounds; ++round) {
        inside[round] = filter_mask(target.tile, quad, kRounds == 2 ? round : lane / 16);
      }
    }
    float* staged_target = staged + lane % 4 * 2 * kPixels + (quad_of(lane) ^ quad_swizzle(lane % 4)) * kQuad;
    const float* row = staged + (kRounds == 2 ? 0 : lane / 16 * kPixels) + pixel;
    unsigned long long y = global_address(
        target.y + (offsets.offset + pixel + (kRounds == 1 ? lane / 16 * problem.half_offset : 0)));
#pragma unroll
    for (int tile = 0; tile < kAccumulatorTiles; ++tile, y += problem.next_filters * sizeof(Element)) {
      const int filters_left = target.filters - tile * kMmaN;
      if (filters_left <= 0) break;
      const unsigned filters = filters_left < kMmaN ? (1u << filters_left) - 1 : ~0u;
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        __syncwarp();
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int k = half * 2 + j;
          store_shared(staged_target + half * kPixels, accumulators[0][tile][k], accumulators[1][tile][k],
                       accumulators[2][tile][k], accumulators[3][tile][k]);
        }
        __syncwarp();
        // All loads precede the first store, so that their latencies overlap.
        float values[kFilters][kRounds][kWidth];
#pragma unroll
        for (int t = 0; t < kFilters; ++t) {
          const float* from = row + t * 2 * kPixels + (quad_in_unit ^ quad_swizzle(t)) * kQuad;
          if constexpr (kWidth == 2) {
            const float2 two = *reinterpret_cast<const float2*>(from);
            values[t][0][0] = two.x, values[t][0][1] = two.y;
          } else {
            values[t][0][0] = from[0], values[t][1][0] = from[kPixels];
          }
        }
#pragma unroll
        for (int round = 0; round < kRounds; ++round) {
          const unsigned stored = inside[round] & filters;
          unsigned long long first = y;
          if (j == 1) first = address_at(first, problem.odd_filter, sizeof(Element));
          if (round == 1) first = address_at(first, problem.half_offset, sizeof(Element));
#pragma unroll
          for (int t = 0; t < kFilters; ++t) {
            const unsigned long long address =
                t == 0 ? first : address_at(first, problem.even_filters[t], sizeof(Element));
            store_values<kAccumulates>(problem, target, stored & 1u << (2 * t + j), address,
                                       values[t][round]);
          }
        }
      }
    }
  }
};

// Computes a staged tile for one binade window. `activates`: the results are then complete, and have an
// activation.
template <typename Format, int kBundle, int kTaps, int kAccumulatorTiles, bool kNhwc>
__device__ inline void compute_tile(const Arguments<typename Format::Element>& problem,
                                    const TileInfo& tile_info, int filters, bool accumulates, bool activates,
                                    bool needs_second_factor, unsigned char* shared) {
  using WarpUnit = Unit<Format, kBundle, kTaps, kAccumulatorTiles, kNhwc>;
  constexpr int kBlockFilters = kAccumulatorTiles * kMmaN;
  const unsigned* const weights = problem.shared.weights(shared);
  const unsigned* const staged = problem.shared.staged.in(shared);
  const FilterBundle* const bundles = problem.shared.bundles.in(shared);
  const QuadOffsets* const quad_offsets = problem.shared.quad_offsets.in(shared);
  const FilterScale* const scales = problem.shared.scales.in(shared);
  const float* const second_factors = problem.shared.second_factors.in(shared);
  float* const results = problem.shared.results.in(shared) + threadIdx.x / 32 * kResultWordsPerWarp;
  const int items = (tile_info.quads[0] + kQuadsPerUnit - 1) / kQuadsPerUnit * problem.filter_blocks;
  const int warps = blockDim.x / 32;
#pragma unroll 1
  for (int item = threadIdx.x / 32; item < items; item += warps) {
    const int unit_index = problem.filter_block_divisor.quotient(item);
    const int filter_block = item - unit_index * problem.filter_blocks;
    const int block_filter = filter_block * kBlockFilters;
    const int first = unit_index * kQuadsPerUnit;
    const int lane_quad = min(first + WarpUnit::quad_of(threadIdx.x % 32), tile_info.quads[0] - 1);
    WarpUnit unit;
    unit.multiply(problem, staged + quad_offsets[lane_quad].word, bundles,
                  weights + filter_block * Format::kParts * problem.steps * WarpUnit::kStepWeights);
    unit.scale_and_add_bias(scales + block_filter, second_factors + block_filter, needs_second_factor);
    if (activates && !accumulates) unit.activate(problem);
    const long long filter_offset =
        kNhwc ? block_filter
              : static_cast<long long>(block_filter >> problem.log2_folds) * problem.output_plane;
    typename Format::Element* const y = problem.y + (tile_info.start + filter_offset);
    unit.store(problem, quad_offsets, {tile_info, y, first, filters - block_filter, accumulates, activates},
               results);
  }
}

}  // namespace convswap::few_channels
