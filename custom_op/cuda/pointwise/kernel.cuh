#pragma once

// The kernel of the algorithm `pointwise`; pointwise.cc tells the idea.

#include "cuda/pointwise/arguments.h"
#include "cuda/pointwise/layout.h"
#include "cuda/primitives/bulk_store.cuh"
#include "cuda/primitives/dependent_launch.cuh"
#include "cuda/primitives/global_store.cuh"
#include "cuda/primitives/nan_extremes.cuh"
#include "cuda/primitives/tensor_float32.cuh"
#include "cuda/primitives/warpgroup_barrier.cuh"
#include "cuda/primitives/warpgroup_multiply.cuh"

namespace convswap::pointwise {

// A block's filters, for all its tiles: weights as the tensor core takes them, quad after quad of channels
// those of all filters, then the bias.
template <int kFilters>
struct Filters {
  unsigned* weights;
  float* bias;

  // By the block. `first`: of the group, and of all.
  template <typename Element>
  __device__ void load(const Arguments<Element>& problem, int quads, int first, int first_of_all) const {
    const bool are_whole =
        problem.channels % kQuad == 0 && reinterpret_cast<unsigned long long>(problem.w) % sizeof(uint4) == 0;
#pragma unroll 4
    for (int i = threadIdx.x; i < quads * kFilters; i += blockDim.x) {
      const int quad = i / kFilters, filter = i % kFilters;
      const Element* const from =
          problem.w + static_cast<long long>(first_of_all + filter) * problem.channels + quad * kQuad;
      const int left = first + filter < problem.filters ? problem.channels - quad * kQuad : 0;
      uint4 words = make_uint4(0u, 0u, 0u, 0u);
      if (are_whole) {
        if (left > 0) words = *reinterpret_cast<const uint4*>(from);
      } else {
        words.x = left > 0 ? __float_as_uint(from[0]) : 0u;
        words.y = left > 1 ? __float_as_uint(from[1]) : 0u;
        words.z = left > 2 ? __float_as_uint(from[2]) : 0u;
        words.w = left > 3 ? __float_as_uint(from[3]) : 0u;
      }
      const auto rounded = [](unsigned bits) { return round_to_tensor_float32(__uint_as_float(bits)); };
      reinterpret_cast<uint4*>(weights)[i] =
          make_uint4(rounded(words.x), rounded(words.y), rounded(words.z), rounded(words.w));
    }
    for (int i = threadIdx.x; i < kFilters; i += blockDim.x) {
      bias[i] = problem.b != nullptr && first + i < problem.filters ? problem.b[first_of_all + i] : 0.0f;
    }
    show_to_copies_and_products();
  }
};

// Where the pixel of a number lies in the first channel of its image, and its output in the first plane.
struct Pixel {
  unsigned image;
  int input, output;

  template <typename Element>
  __device__ Pixel(const Arguments<Element>& problem, unsigned number)
      : image(problem.output_plane.quotient_of_any(number)),
        output(static_cast<int>(number - image * problem.output_plane.divisor)) {
    input = output;
    if (problem.is_dense) return;
    const int depth = problem.output_area.quotient_of_any(output);
    const int of_plane = output - depth * static_cast<int>(problem.output_area.divisor);
    const int row = problem.output_width.quotient_of_any(of_plane);
    const int column = of_plane - row * static_cast<int>(problem.output_width.divisor);
    input = depth * problem.depth_step + row * problem.row_step + column * problem.column_step;
  }
};

// The pixels of a thread: of a tile of a warpgroup two, eight apart, of the channels every fourth.
struct ThreadPixels {
  int row, channel;

  __device__ ThreadPixels()
      : row(thread_of_warpgroup() / 32 * 16 + static_cast<int>(threadIdx.x) % 32 / 4),
        channel(static_cast<int>(threadIdx.x) % 4) {}

  __device__ unsigned number(int tile, int i) const {
    return static_cast<unsigned>(tile * kPixels + row + 8 * i);
  }
};

// The channels of a chunk of a thread's pixels, as products take them: step after step.
template <int kSteps>
using Chunk = unsigned[kSteps][4];

// Loads chunks of a warpgroup's tiles, one after the other.
template <typename Element, int kSteps>
class ChunkLoader {
 public:
  __device__ ChunkLoader(const Arguments<Element>& problem, const ThreadPixels& own, int group, int tile,
                         int stride)
      : problem_(problem), own_(own), group_(group), tile_(tile), stride_(stride) {}

  // Where there is no more, none.
  __device__ void load_next(Chunk<kSteps>& to) {
    if (tile_ >= problem_.tiles) return;
    if (chunk_ == 0) find_pixels();
    const int left = problem_.channels - chunk_ * kSteps * kDepth;
    const long long plane = problem_.input_plane;
    if (left >= kSteps * kDepth) [[likely]] {
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          to[step][i] = __float_as_uint(from_[i % 2][(step * kDepth + i / 2 * 4) * plane]);
        }
      }
    } else {
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int channel = step * kDepth + i / 2 * 4;
          to[step][i] = own_.channel + channel < left ? __float_as_uint(from_[i % 2][channel * plane]) : 0u;
        }
      }
    }
    from_[0] += kSteps * kDepth * plane, from_[1] += kSteps * kDepth * plane;
    if (++chunk_ == problem_.chunks) chunk_ = 0, tile_ += stride_;
  }

 private:
  // What lies behind the last pixel is as the last.
  __device__ void find_pixels() {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const Pixel pixel(problem_, min(own_.number(tile_, i), problem_.pixels - 1));
      const long long channel = static_cast<long long>(pixel.image) * problem_.in_channels +
                                group_ * problem_.channels + own_.channel;
      from_[i] = problem_.x + channel * problem_.input_plane + pixel.input;
    }
  }

  const Arguments<Element>& problem_;
  const ThreadPixels& own_;
  int group_, tile_, stride_, chunk_ = 0;
  const Element* from_[2];
};

// Stores the results of a tile: of a thread's pixels for every eight filters two, neighbours. Lanes store
// eight neighbouring pixels of four filters.
template <int kTiles, typename Element>
__device__ inline void store_results(const Arguments<Element>& problem, const ThreadPixels& own, int tile,
                                     int first, int first_of_all, const float* bias,
                                     float (&sums)[kTiles][4]) {
  const int filter = own.channel * 2;
  const int left = problem.filters - first - filter;
  const unsigned plane = problem.output_plane.divisor;
  // Of filters and pixels that are none the first residual is added, and nothing is stored.
  long long at[2];
  bool exist[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const unsigned number = own.number(tile, i);
    exist[i] = number < problem.pixels;
    const Pixel pixel(problem, exist[i] ? number : 0u);
    at[i] = (static_cast<long long>(pixel.image) * problem.out_channels + first_of_all + filter) * plane +
            pixel.output;
  }
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
    const float2 pair = *reinterpret_cast<const float2*>(bias + t * kTileFilters + filter);
#pragma unroll
    for (int i = 0; i < 2; ++i) sums[t][2 * i] += pair.x, sums[t][2 * i + 1] += pair.y;
  }
  if (problem.z != nullptr) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const Element* from = problem.z + at[i];
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        // A few at a time: not all fit into registers.
        if (t % 4 == 0) asm volatile("" ::: "memory");
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const bool is_there = exist[i] && t * kTileFilters + j < left;
          sums[t][2 * i + j] += *(is_there ? from + j * static_cast<long long>(plane) : problem.z);
        }
        from += kTileFilters * static_cast<long long>(plane);
      }
    }
  }
  if (problem.is_bounded) {
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        sums[t][j] = smaller_or_nan(larger_or_nan(sums[t][j], problem.least), problem.most);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    unsigned long long to = global_address(problem.y + at[i]);
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        store_global_if(exist[i] && t * kTileFilters + j < left,
                        address_beyond(to, j, plane * static_cast<unsigned>(sizeof(Element))),
                        __float_as_uint(sums[t][2 * i + j]));
      }
      to = address_beyond(to, kTileFilters, plane * static_cast<unsigned>(sizeof(Element)));
    }
  }
}

// Blocks stay; a row of the grid has the filters of a block of a group, whose warpgroups take tiles in turns.
template <typename Element, int kTiles, int kWarpgroups, int kSteps>
__global__ void __launch_bounds__(128 * kWarpgroups, 1)
    kernel(const __grid_constant__ Arguments<Element> problem) {
#if defined(__CUDA_ARCH__) && !defined(__CUDA_ARCH_FEAT_SM90_ALL)
#error "pointwise has code for compute capability 9.0 alone: compile it for sm_90a"
#else
  constexpr int kFilters = kTiles * kTileFilters;
  wait_for_kernels_before();
  let_next_kernel_start();
  extern __shared__ __align__(128) unsigned char shared[];
  const Filters<kFilters> filters{
      reinterpret_cast<unsigned*>(shared),
      reinterpret_cast<float*>(shared) + problem.chunks * kSteps * kDepth * kFilters};
  const int group = problem.blocks_of_group.quotient_of_any(blockIdx.y);
  const int first = (blockIdx.y - group * static_cast<int>(problem.blocks_of_group.divisor)) * kFilters;
  const int first_of_all = group * problem.filters + first;
  filters.load(problem, problem.chunks * (kSteps * kDepth / kQuad), first, first_of_all);
  __syncthreads();
  const int stride = gridDim.x * kWarpgroups;
  int tile = blockIdx.x * kWarpgroups + warpgroup_of_block();
  const ThreadPixels own;
  ChunkLoader<Element, kSteps> loader(problem, own, group, tile, stride);
  const SharedMatrix all_weights = SharedMatrix::at(filters.weights, kFilters).of_warp();
  float sums[kTiles][4];
  const auto clear = [&] {
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[t][i] = 0.0f;
    }
  };
  int chunk = 0;
  // Multiplies a chunk while the next is being loaded.
  const auto multiply = [&](Chunk<kSteps>& current, Chunk<kSteps>& next) {
    loader.load_next(next);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        current[step][i] = round_to_tensor_float32(__uint_as_float(current[step][i]));
      }
    }
    SharedMatrix weights = all_weights.advanced(chunk * (kSteps * kDepth / kQuad * kFilters));
    begin_warpgroup_products(sums);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      add_warpgroup_product<TensorFloat32, kTiles>(sums, current[step], weights);
      weights = weights.advanced(kDepth / kQuad * kFilters);
    }
    finish_warpgroup_products(sums);
  };
  // Two chunks take turns.
  Chunk<kSteps> even, odd;
  clear();
  loader.load_next(even);
  for (bool is_odd = false; tile < problem.tiles; is_odd = !is_odd) {
    if (is_odd) {
      multiply(odd, even);
    } else {
      multiply(even, odd);
    }
    if (++chunk < problem.chunks) continue;
    store_results(problem, own, tile, first, first_of_all, filters.bias, sums);
    clear();
    chunk = 0;
    tile += stride;
  }
#endif
}

}  // namespace convswap::pointwise
