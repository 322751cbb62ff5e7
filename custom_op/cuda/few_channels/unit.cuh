#pragma once

// What a warp does at a time: multiply, and store the results.

#include "cuda/few_channels/arguments.h"
#include "cuda/few_channels/formats.cuh"
#include "cuda/primitives/shared_store.cuh"
#include "cuda/primitives/tensor_core.cuh"

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

// What the warps of a block do with a staged tile.
template <typename Element>
struct TileWork {
  Element* y;          // the block's first filter's plane at the tile's first pixel
  int filters;         // of the block
  int plane;           // of the output, in elements
  int quads[2];        // how many of each half are inside the output
  int whole_quads[2];  // and of how many all folds are; of the others the first `last_folds`
  int last_folds;
  int columns;  // what is left of an output row from the tile's left edge
  bool accumulates, is_far;
};

// Sums of 8 * kTiles filters at 64 pixels: eight quads of either half of the tile. Pixels are the rows of
// the product, filters its columns.
template <typename Format, int kBundle, int kTaps, int kTiles>
struct Unit {
  using Element = typename Format::Element;
  using Number = typename Format::Number;
  static constexpr int kWords = kBundle / 2;  // of one pixel and bundle
  static constexpr int kStepWeights = kTaps * kTiles * 32 * kWords;

  float sums[kQuad][kTiles][4];  // pixel of the quad, tile, the tensor core's four

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
        for (int j = 0; j < 4; ++j) sums[i][tile][j] = 0.0f;
      }
    }
    bundles += lane % 4;
#pragma unroll 1
    for (int term = 0; term < Format::kTerms; ++term) {
      multiply_parts(problem.steps, pixels + Format::pixel_part(term) * problem.part_words, bundles,
                     weights + Format::weight_part(term) * problem.steps * kStepWeights + lane * kWords);
    }
  }

 private:
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
              multiply_add_16_deep<Number>(sums[i][tile], a[0], a[1], a[2], a[3], b[tile][0], b[tile][1]);
            } else {
              multiply_add_8_deep<Number>(sums[i][tile], a[0], a[1], b[tile][0]);
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
          sums[i][tile][0] *= first, sums[i][tile][2] *= first;
          sums[i][tile][1] *= second, sums[i][tile][3] *= second;
        }
      }
#pragma unroll
      for (int i = 0; i < kQuad; ++i) {
        sums[i][tile][0] = fmaf(sums[i][tile][0], both.x, both.y);
        sums[i][tile][1] = fmaf(sums[i][tile][1], both.z, both.w);
        sums[i][tile][2] = fmaf(sums[i][tile][2], both.x, both.y);
        sums[i][tile][3] = fmaf(sums[i][tile][3], both.z, both.w);
      }
    }
  }

  // Where the results of a unit go: `first` is its first quad, `filters` how many it has, `y` the plane of
  // the first at the tile's first pixel.
  struct Target {
    const TileWork<Element>& tile;
    Element* y;
    int first;
    int filters;
  };

  __device__ void store(const Arguments<Element>& problem, const QuadPlace* places, const Target& target,
                        float* staged) {
    if (target.tile.accumulates) {
      store<true>(problem, places, target, staged);
    } else {
      store<false>(problem, places, target, staged);
    }
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
  static __device__ void put(Element* y, float (&values)[kWidth]) {
    if constexpr (kAccumulates) {
#pragma unroll
      for (int i = 0; i < kWidth; ++i) values[i] += Format::to_float(y[i]);
    }
    Format::template store<kWidth>(y, values);
  }

  // Straight from the registers, where rows are whole aligned quads.
  template <bool kAccumulates>
  __device__ void store_quads(const Arguments<Element>& problem, const QuadPlace* places,
                              const Target& target) const {
    const int lane = threadIdx.x % 32;
    const int quad = target.first + quad_of(lane);
    const QuadPlace place = places[min(quad, target.tile.quads[0] - 1)];
    const bool is_column = place.column * kQuad < target.tile.columns;
    const int folds = 1 << problem.log2_folds;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int filter = tile * kFiltersPerTile + lane % 4 * 2 + j;
        const int fold = filter & (folds - 1);
        const bool is_last = fold >= target.tile.last_folds;
        Element* y = target.y + (place.offset + fold * problem.output_width +
                                 static_cast<long long>(filter >> problem.log2_folds) * target.tile.plane);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int k = half * 2 + j;
          float values[kQuad] = {sums[0][tile][k], sums[1][tile][k], sums[2][tile][k], sums[3][tile][k]};
          if (filter < target.filters && is_column &&
              quad < (is_last ? target.tile.whole_quads[half] : target.tile.quads[half]))
            put<kAccumulates>(y + half * problem.half_offset, values);
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
    const int lane = threadIdx.x % 32;
    const int quad_in_unit = lane * kWidth % kPixels / kQuad;
    const int quad = target.first + quad_in_unit;
    const int pixel = lane * kWidth % kQuad;
    const QuadPlace place = places[min(quad, target.tile.quads[0] - 1)];
    const bool is_column = place.column * kQuad + pixel < target.tile.columns;
    // How many of a folded row's outputs are inside the image.
    int inside[kRounds];
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      const int half = kRounds == 2 ? round : lane / 16;
      const int quads = half == 1 ? target.tile.quads[1] : target.tile.quads[0];
      const int whole_quads = half == 1 ? target.tile.whole_quads[1] : target.tile.whole_quads[0];
      inside[round] = !is_column || quad >= quads ? 0
                      : quad < whole_quads        ? kFiltersPerTile
                                                  : target.tile.last_folds;
    }
    const int folds = 1 << problem.log2_folds;
    // From one filter to the next but one: two rows further down, or in the next plane.
    const int down = 2 * problem.output_width;
    const long long across =
        folds == 1 ? 2ll * target.tile.plane : target.tile.plane - (folds - 2) * problem.output_width;
    float* own = staged + lane % 4 * 2 * kPixels + (quad_of(lane) ^ exchange(lane % 4)) * kQuad;
    const float* row = staged + (kRounds == 2 ? 0 : lane / 16 * kPixels) + pixel;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      Element* y = target.y + (place.offset + pixel + (kRounds == 1 ? lane / 16 * problem.half_offset : 0));
      if (j == 1) y += folds == 1 ? target.tile.plane : problem.output_width;
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        __syncwarp();
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int k = half * 2 + j;
          store_shared(own + half * kPixels, sums[0][tile][k], sums[1][tile][k], sums[2][tile][k],
                       sums[3][tile][k]);
        }
        __syncwarp();
#pragma unroll
        for (int t = 0; t < 4; ++t) {
          const bool is_filter = tile * kFiltersPerTile + 2 * t + j < target.filters;
          const int fold = 2 * t + j & folds - 1;
          const float* from = row + t * 2 * kPixels + (quad_in_unit ^ exchange(t)) * kQuad;
#pragma unroll
          for (int round = 0; round < kRounds; ++round) {
            float values[kWidth];
            if constexpr (kWidth == 2) {
              const float2 two = *reinterpret_cast<const float2*>(from);
              values[0] = two.x, values[1] = two.y;
            } else {
              values[0] = from[round * kPixels];
            }
            if (is_filter && fold < inside[round]) {
              put<kAccumulates>(y + (round == 1 ? problem.half_offset : 0), values);
            }
          }
          y += (2 * t + 2 & folds - 1) < 2 ? across : down;
        }
      }
    }
  }
};

// Computes a staged tile.
template <typename Format, int kBundle, int kTaps, int kTiles>
__device__ inline void compute_tile(const Arguments<typename Format::Element>& problem,
                                    const TileWork<typename Format::Element>& work, unsigned char* shared) {
  using WarpUnit = Unit<Format, kBundle, kTaps, kTiles>;
  constexpr int kBlockFilters = kTiles * kFiltersPerTile;
  const unsigned* const weights = reinterpret_cast<const unsigned*>(shared);
  const unsigned* const staged = reinterpret_cast<const unsigned*>(shared + problem.shared.staged);
  const FilterBundle* const bundles = reinterpret_cast<const FilterBundle*>(shared + problem.shared.bundles);
  const QuadPlace* const places = reinterpret_cast<const QuadPlace*>(shared + problem.shared.places);
  const FilterScale* const scales = reinterpret_cast<const FilterScale*>(shared + problem.shared.scales);
  const float* const rests = reinterpret_cast<const float*>(shared + problem.shared.rests);
  float* const results =
      reinterpret_cast<float*>(shared + problem.shared.results) + threadIdx.x / 32 * kStagedWords;
  const int own_quad = WarpUnit::quad_of(threadIdx.x % 32);
  const int last_quad = work.quads[0] - 1;
  const int items = (last_quad + kQuadsPerUnit) / kQuadsPerUnit * problem.filter_blocks;
  const int warps = blockDim.x / 32;
#pragma unroll 1
  for (int item = threadIdx.x / 32; item < items; item += warps) {
    const int unit_index = problem.filter_block_divisor.quotient(item);
    const int filter_block = item - unit_index * problem.filter_blocks;
    const int block_filter = filter_block * kBlockFilters;
    const int first = unit_index * kQuadsPerUnit;
    WarpUnit unit;
    unit.multiply(problem, staged + places[min(first + own_quad, last_quad)].word, bundles,
                  weights + filter_block * Format::kParts * problem.steps * WarpUnit::kStepWeights);
    unit.finish(scales + block_filter, rests + block_filter, work.is_far);
    unit.store(problem, places,
               {work, work.y + static_cast<long long>(block_filter >> problem.log2_folds) * work.plane, first,
                work.filters - block_filter},
               results);
  }
}

}  // namespace convswap::few_channels
