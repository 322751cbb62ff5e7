#pragma once

// What a warp does at a time: multiply, and store the results.

#include "cuda/epilogue/activations.cuh"
#include "cuda/few_channels/arguments.h"
#include "cuda/primitives/global_memory.cuh"
#include "cuda/primitives/mma.cuh"
#include "cuda/primitives/registers.cuh"
#include "cuda/primitives/shared_memory.cuh"
#include "cuda/primitives/tensor_core_formats.cuh"

namespace convswap::few_channels {

// The columns of a bundle that a quad's pixels need between them, of both halves of the tile: what the
// tensor core takes for the two lies side by side.
template <int kBundle, int kTaps>
struct Window {
  static constexpr int kColumns = kTaps + kQuad - 1;
  unsigned words[kColumns * kBundle];

  __device__ void load(const unsigned* source) {
    // A single tap of a dilated filter may start at any column; other lines start at 16 bytes.
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

// Sums of 8 * kTiles filters at 64 pixels: eight quads of either half of the tile. Pixels are the rows of
// the product, filters its columns.
template <typename Format, int kBundle, int kTaps, int kTiles>
struct Unit {
  using Element = typename Format::Element;
  using Number = typename Format::Number;
  static constexpr int kWords = kBundle / 2;  // of one pixel and bundle
  static constexpr int kStepWeights = kTaps * kTiles * 32 * kWords;

  float accumulators[kQuad][kTiles][4];  // pixel of the quad, tile, the tensor core's four

  // The quad of a lane. With bundles of two rows, a quarter-warp's quads must lie two apart for its loads to
  // fall into different banks.
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
      for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
        for (int j = 0; j < 4; ++j) accumulators[i][tile][j] = 0.0f;
      }
    }
    bundles += lane % 4;
    for_each_term<Format, 1>(
        [&] { scale(Format::kCorrectionScale); },
        [&](int term) {
          multiply_parts(problem.steps, pixels + Format::pixel_part(term) * problem.part_words, bundles,
                         weights + Format::weight_part(term) * problem.steps * kStepWeights + lane * kWords);
        });
  }

 private:
  __device__ void scale(float factor) {
#pragma unroll
    for (int i = 0; i < kQuad; ++i) {
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
        for (int j = 0; j < 4; ++j) accumulators[i][tile][j] *= factor;
      }
    }
  }

  __device__ void multiply_parts(int steps, const unsigned* pixels, const FilterBundle* bundles,
                                 const unsigned* weights) {
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
      Window<kBundle, kTaps> window;
      window.load(pixels + bundles[step * kBundlesPerStep].offset);
#pragma unroll
      for (int tap = 0; tap < kTaps; ++tap, weights += 32 * kTiles * kWords) {
        unsigned b[kTiles][kWords];
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
          if constexpr (kWords == 2) {
            const uint2 two = *reinterpret_cast<const uint2*>(weights + 64 * tile);
            b[tile][0] = two.x, b[tile][1] = two.y;
          } else {
            b[tile][0] = weights[32 * tile];
          }
        }
#pragma unroll
        for (int i = 0; i < kQuad; ++i) {
          const unsigned* a = window.words + (tap + i) * kBundle;
#pragma unroll
          for (int tile = 0; tile < kTiles; ++tile) {
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
  // Undoes the scales of the pixels and weights and adds the bias.
  __device__ void finish(const FilterScale* scales, const float* rests, bool is_far) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const int filter = tile * kFiltersPerTile + threadIdx.x % 4 * 2;
      const float4 both = *reinterpret_cast<const float4*>(scales + filter);
      if (Format::kIsScaled && is_far) {
        const float first = rests[filter], second = rests[filter + 1];
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

  // The activation of sums to which nothing is to be added.
  __device__ void activate(const Arguments<Element>& problem) {
    finish_many(problem.following, [&](auto finish) {
#pragma unroll
      for (int i = 0; i < kQuad; ++i) {
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) finish(accumulators[i][tile]);
      }
    });
  }

  // Where the results of a unit go: `first` is its first quad, `filters` how many it has, `y` the plane of
  // the first at the tile's first pixel.
  struct Target {
    const TileWork& tile;
    Element* y;
    int first;
    int filters;
    bool accumulates;
    bool activates;  // what has been added up
  };

  __device__ void store(const Arguments<Element>& problem, const QuadPlace* places, const Target& target,
                        float* staged) {
    // Only float32 takes more than one pass.
    if constexpr (sizeof(Element) == sizeof(float)) {
      if (target.accumulates) return store<true>(problem, places, target, staged);
    }
    store<false>(problem, places, target, staged);
  }

 private:
  template <bool kAccumulates>
  __device__ void store(const Arguments<Element>& problem, const QuadPlace* places, const Target& target,
                        float* staged) {
    if (problem.store_width == kQuad) {
      store_quads<kAccumulates>(problem, places, target);
    } else if (problem.store_width == 2) {
      store_staged<2, kAccumulates>(problem, places, target, staged);
    } else {
      store_staged<1, kAccumulates>(problem, places, target, staged);
    }
  }

  template <bool kAccumulates, int kWidth>
  static __device__ void put(const Arguments<Element>& problem, const Target& target, unsigned condition,
                             unsigned long long address, float (&values)[kWidth]) {
    if constexpr (kAccumulates) {
      if (condition != 0) {
        const Element* y = reinterpret_cast<const Element*>(address);
#pragma unroll
        for (int i = 0; i < kWidth; ++i) values[i] += Format::to_float(y[i]);
      }
      if (target.activates) {
        if (problem.following.only_clamps) {
          limit_values(problem.following, values);
        } else {  // seldom, and here in the code many times
#pragma unroll
          for (float& value : values) value = activated(problem.following.epilogue, value);
        }
      }
    }
    store_global_if(condition, address, Format::pack(values));
  }

  // Which of eight filters have an output inside the image at a quad of a half, a bit for each.
  static __device__ unsigned filters_inside(const TileWork& tile, int quad, int half) {
    const int quads = half == 1 ? tile.quads[1] : tile.quads[0];
    const int whole_quads = half == 1 ? tile.whole_quads[1] : tile.whole_quads[0];
    return quad < whole_quads ? (1u << kFiltersPerTile) - 1 : quad < quads ? tile.last_folds : 0;
  }

  // Straight from the registers, where rows are whole aligned quads.
  template <bool kAccumulates>
  __device__ void store_quads(const Arguments<Element>& problem, const QuadPlace* places,
                              const Target& target) const {
    const unsigned lane = optimization_barrier(threadIdx.x) % 32;
    const int quad = target.first + quad_of(lane);
    const int first_filter = lane % 4 * 2;
    const QuadPlace place = places[min(quad, target.tile.quads[0] - 1)];
    unsigned inside[2] = {};
    if (place.column * kQuad < target.tile.columns) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        inside[half] = filters_inside(target.tile, quad, half) >> first_filter;
      }
    }
    const int left = target.filters - first_filter;
    unsigned long long y =
        global_address(target.y + place.offset +
                       static_cast<long long>(first_filter >> problem.log2_folds) * problem.output_plane +
                       (first_filter & ((1 << problem.log2_folds) - 1)) * problem.output_width);
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile, y += problem.next_filters * sizeof(Element)) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const bool is_filter = tile * kFiltersPerTile + j < left;
        unsigned long long address = j == 0 ? y : address_at(y, problem.odd_filter, sizeof(Element));
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int k = half * 2 + j;
          float values[kQuad] = {accumulators[0][tile][k], accumulators[1][tile][k], accumulators[2][tile][k],
                                 accumulators[3][tile][k]};
          if (half == 1) address = address_at(address, problem.half_offset, sizeof(Element));
          put<kAccumulates>(problem, target, is_filter ? inside[half] & 1u << j : 0u, address, values);
        }
      }
    }
  }

  // Through shared memory, so that a warp stores neighbouring pixels whatever their alignment: rows of a
  // width that four does not divide would otherwise go out in single words, each a write of a part of a
  // sector. Four filters pass at a time, one from each of four lanes, which leaves more of the memory to the
  // tile. A filter's quads are exchanged so that the 16-byte stores of a quarter-warp, four filters and two
  // quads, fall into different banks.
  static __device__ constexpr int exchange(int t) { return kBundle == 4 ? 2 * t : (t & 1) | (t & 2) << 1; }

  template <int kWidth, bool kAccumulates>
  __device__ void store_staged(const Arguments<Element>& problem, const QuadPlace* places,
                               const Target& target, float* staged) const {
    constexpr int kPixels = kQuad * kQuadsPerUnit;
    constexpr int kRounds = 2 / kWidth;
    constexpr int kFilters = kFiltersPerTile / 2;  // at a time
    const unsigned lane = optimization_barrier(threadIdx.x) % 32;
    const int quad_in_unit = lane * kWidth % kPixels / kQuad;
    const int quad = target.first + quad_in_unit;
    const int pixel = lane * kWidth % kQuad;
    const QuadPlace place = places[min(quad, target.tile.quads[0] - 1)];
    unsigned inside[kRounds] = {};
    if (place.column * kQuad + pixel < target.tile.columns) {
#pragma unroll
      for (int round = 0; round < kRounds; ++round) {
        inside[round] = filters_inside(target.tile, quad, kRounds == 2 ? round : lane / 16);
      }
    }
    float* own = staged + lane % 4 * 2 * kPixels + (quad_of(lane) ^ exchange(lane % 4)) * kQuad;
    const float* row = staged + (kRounds == 2 ? 0 : lane / 16 * kPixels) + pixel;
    unsigned long long y = global_address(
        target.y + (place.offset + pixel + (kRounds == 1 ? lane / 16 * problem.half_offset : 0)));
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile, y += problem.next_filters * sizeof(Element)) {
      const int left = target.filters - tile * kFiltersPerTile;
      if (left <= 0) break;
      const unsigned filters = left < kFiltersPerTile ? (1u << left) - 1 : ~0u;
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        __syncwarp();
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int k = half * 2 + j;
          store_shared(own + half * kPixels, accumulators[0][tile][k], accumulators[1][tile][k],
                       accumulators[2][tile][k], accumulators[3][tile][k]);
        }
        __syncwarp();
        // All are loaded before the first is stored, so that their latencies overlap.
        float values[kFilters][kRounds][kWidth];
#pragma unroll
        for (int t = 0; t < kFilters; ++t) {
          const float* from = row + t * 2 * kPixels + (quad_in_unit ^ exchange(t)) * kQuad;
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
            put<kAccumulates>(problem, target, stored & 1u << (2 * t + j), address, values[t][round]);
          }
        }
      }
    }
  }
};

// Computes a staged tile; `activates` where its sums are whole with this window of this pass.
template <typename Format, int kBundle, int kTaps, int kTiles>
__device__ inline void compute_tile(const Arguments<typename Format::Element>& problem, const TileWork& work,
                                    int filters, bool accumulates, bool activates, bool is_far,
                                    unsigned char* shared) {
  using WarpUnit = Unit<Format, kBundle, kTaps, kTiles>;
  constexpr int kBlockFilters = kTiles * kFiltersPerTile;
  const unsigned* const weights = problem.shared.weights(shared);
  const unsigned* const staged = problem.shared.staged.in(shared);
  const FilterBundle* const bundles = problem.shared.bundles.in(shared);
  const QuadPlace* const places = problem.shared.places.in(shared);
  const FilterScale* const scales = problem.shared.scales.in(shared);
  const float* const rests = problem.shared.rests.in(shared);
  float* const results = problem.shared.results.in(shared) + threadIdx.x / 32 * kStagedWords;
  const int items = (work.quads[0] + kQuadsPerUnit - 1) / kQuadsPerUnit * problem.filter_blocks;
  const int warps = blockDim.x / 32;
#pragma unroll 1
  for (int item = threadIdx.x / 32; item < items; item += warps) {
    const int unit_index = problem.filter_block_divisor.quotient(item);
    const int filter_block = item - unit_index * problem.filter_blocks;
    const int block_filter = filter_block * kBlockFilters;
    const int first = unit_index * kQuadsPerUnit;
    const int own_quad = min(first + WarpUnit::quad_of(threadIdx.x % 32), work.quads[0] - 1);
    WarpUnit unit;
    unit.multiply(problem, staged + places[own_quad].word, bundles,
                  weights + filter_block * Format::kParts * problem.steps * WarpUnit::kStepWeights);
    unit.finish(scales + block_filter, rests + block_filter, is_far);
    if (activates && !accumulates) unit.activate(problem);
    typename Format::Element* const y =
        problem.y +
        (work.start + static_cast<long long>(block_filter >> problem.log2_folds) * problem.output_plane);
    unit.store(problem, places, {work, y, first, filters - block_filter, accumulates, activates}, results);
  }
}

}  // namespace convswap::few_channels
