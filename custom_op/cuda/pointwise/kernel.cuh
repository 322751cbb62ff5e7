#pragma once

// The kernel of pointwise; see pointwise.cc.

#include "cuda/epilogue/activations.cuh"
#include "cuda/pointwise/arguments.h"
#include "cuda/pointwise/operands.cuh"
#include "cuda/primitives/dependent_launch.cuh"
#include "cuda/primitives/global_memory.cuh"
#include "cuda/primitives/warpgroup.cuh"
#include "cuda/primitives/wgmma.cuh"

namespace convswap::pointwise {

// Epilogue of a tile. Per tile of eight filters, a thread has two adjacent filters of its two pixels.
template <int kTiles, typename Element>
class TileEpilogue {
 public:
  __device__ TileEpilogue(const Arguments<Element>& problem, const ThreadPixels& pixels, int tile, int first,
                          int first_out_channel)
      : problem_(problem),
        filter_(pixels.quad_lane * 2),
        filters_left_(problem.filters - first - filter_),
        plane_(problem.output_plane.divisor) {
    // Out-of-range filters and pixels add the first element of the residual and store nothing.
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const unsigned number = pixels.number(tile, i);
      is_pixel_[i] = number < problem.pixels;
      const Pixel pixel(problem, is_pixel_[i] ? number : 0u);
      at_[i] = (static_cast<long long>(pixel.image) * problem.out_channels + first_out_channel + filter_) *
                   plane_ +
               pixel.output;
    }
  }

  __device__ void store(float (&accumulators)[kTiles][4], const float* bias) const {
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      const float2 pair = *reinterpret_cast<const float2*>(bias + t * kTileFilters + filter_);
#pragma unroll
      for (int i = 0; i < 2; ++i) accumulators[t][2 * i] += pair.x, accumulators[t][2 * i + 1] += pair.y;
    }
    if (problem_.z != nullptr) {
      if (problem_.stores_pairs) {
        add_pairs(accumulators);
      } else {
        add_each(accumulators);
      }
    }
    if (problem_.epilogue.epilogue.activation != Activation::none) {
      dispatch_activation(problem_.epilogue, [&](auto finish) {
#pragma unroll
        for (int t = 0; t < kTiles; ++t) finish(accumulators[t]);
      });
    }
    if (problem_.stores_pairs) {
      store_pairs(accumulators);
    } else {
      store_each(accumulators);
    }
  }

 private:
  using Operands = WgmmaOperands<Element>;
  using Pair = typename Operands::Pair;

  __device__ bool is_filter(int t, int j) const { return t * kTileFilters + j < filters_left_; }

  __device__ void add_pairs(float (&accumulators)[kTiles][4]) const {
    const Element* from = problem_.z + at_[0];
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      // Limits the loads in flight: all of them do not fit into registers.
      if (t % 4 == 0) asm volatile("" ::: "memory");
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const bool in_bounds = is_pixel_[0] && is_filter(t, j);
        const float2 both = Operands::floats_of(*reinterpret_cast<const Pair*>(
            in_bounds ? from + j * static_cast<long long>(plane_) : problem_.z));
        accumulators[t][j] += both.x, accumulators[t][2 + j] += both.y;
      }
      from += kTileFilters * static_cast<long long>(plane_);
    }
  }

  __device__ void add_each(float (&accumulators)[kTiles][4]) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const Element* from = problem_.z + at_[i];
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        if (t % 4 == 0) asm volatile("" ::: "memory");
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const bool in_bounds = is_pixel_[i] && is_filter(t, j);
          accumulators[t][2 * i + j] +=
              static_cast<float>(*(in_bounds ? from + j * static_cast<long long>(plane_) : problem_.z));
        }
        from += kTileFilters * static_cast<long long>(plane_);
      }
    }
  }

  __device__ void store_pairs(const float (&accumulators)[kTiles][4]) const {
    unsigned long long to = global_address(problem_.y + at_[0]);
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        store_global_if(is_pixel_[0] && is_filter(t, j), plane_address(to, j),
                        Operands::pair_of(accumulators[t][j], accumulators[t][2 + j]));
      }
      to = plane_address(to, kTileFilters);
    }
  }

  __device__ void store_each(const float (&accumulators)[kTiles][4]) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      unsigned long long to = global_address(problem_.y + at_[i]);
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          store_global_if(is_pixel_[i] && is_filter(t, j), plane_address(to, j),
                          Operands::bits_of(accumulators[t][2 * i + j]));
        }
        to = plane_address(to, kTileFilters);
      }
    }
  }

  // Address of the same pixel, `planes` filters further.
  __device__ unsigned long long plane_address(unsigned long long address, unsigned planes) const {
    return address_at(address, planes, plane_ * static_cast<unsigned>(sizeof(Element)));
  }

  const Arguments<Element>& problem_;
  int filter_, filters_left_;
  unsigned plane_;
  long long at_[2];
  bool is_pixel_[2];
};

// Persistent blocks. A grid row has one block of filters of one group; its warpgroups take tiles in turns.
template <typename Element, int kTiles, int kWarpgroups, int kSteps, int kStages>
__global__ void __launch_bounds__(128 * kWarpgroups, 1)
    kernel(const __grid_constant__ Arguments<Element> problem) {
#if defined(__CUDA_ARCH__) && !defined(__CUDA_ARCH_FEAT_SM90_ALL)
#error "pointwise has code for compute capability 9.0 alone: compile it for sm_90a"
#else
  constexpr int kFilters = kTiles * kTileFilters;
  static_assert(kFilters <= 128 * kWarpgroups);  // one thread per bias
  constexpr int kVectorsPerStep = kWgmmaDepthBytes / kVectorBytes;
  extern __shared__ __align__(128) unsigned char shared[];
  const int vectors = problem.chunks * kSteps * kVectorsPerStep;
  const SmemFilters<kFilters> filters{reinterpret_cast<uint4*>(shared),
                                      reinterpret_cast<float*>(shared + vectors * kFilters * kVectorBytes)};
  const int group = problem.filter_blocks_per_group.quotient_of_any(blockIdx.y);
  const int first =
      (blockIdx.y - group * static_cast<int>(problem.filter_blocks_per_group.divisor)) * kFilters;
  const int first_out_channel = group * problem.filters + first;
  griddepcontrol_wait_unless(problem.weights_are_constant);
  filters.start_loads(problem, vectors, first, first_out_channel);
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  const Element bias = filters.bias_of_thread(problem, first, first_out_channel);
  const int tile_step = gridDim.x * kWarpgroups;
  int tile = blockIdx.x * kWarpgroups + warpgroup_index();
  const ThreadPixels pixels(problem.stores_pairs);
  ChunkLoader<Element, kSteps> loader(problem, pixels, group, tile, tile_step);
  const SmemDescriptor all_weights = SmemDescriptor::at(filters.weights, kFilters).warp_uniform();
  float accumulators[kTiles][4];
  const auto clear = [&] {
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) accumulators[t][i] = 0.0f;
    }
  };
  int chunk = 0;
  const auto multiply = [&](Chunk<kSteps>& current) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) WgmmaOperands<Element>::make_fragment(current[step]);
    SmemDescriptor weights = all_weights.advanced(chunk * (kSteps * kVectorsPerStep * kFilters));
    wgmma_fence(accumulators);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      wgmma<typename WgmmaOperands<Element>::Product, kTiles>(accumulators, current[step], weights);
      weights = weights.advanced(kVectorsPerStep * kFilters);
    }
    wgmma_commit_and_wait(accumulators);
  };
  const auto finish_chunk = [&] {
    if (++chunk < problem.chunks) return;
    TileEpilogue<kTiles, Element>(problem, pixels, tile, first, first_out_channel)
        .store(accumulators, filters.bias);
    clear();
    chunk = 0;
    tile += tile_step;
  };
  if constexpr (kStages > 0) {
    SmemPipeline<Element, kSteps, kStages> stages(reinterpret_cast<unsigned char*>(filters.bias + kFilters));
    stages.fill(loader);
    filters.template wait<kStages - 1>(vectors, bias);
    clear();
    while (tile < problem.tiles) {
      Chunk<kSteps> current;
      stages.consume_next(loader, current);
      multiply(current);
      finish_chunk();
    }
  } else {
    // Double buffer in registers: one chunk is loaded while the other is multiplied.
    Chunk<kSteps> even, odd;
    const auto load_next = [&](Chunk<kSteps>& to) { loader.load_next(RegisterStage<Element, kSteps>(to)); };
    load_next(even);
    filters.template wait<0>(vectors, bias);
    clear();
    for (bool is_odd = false; tile < problem.tiles; is_odd = !is_odd) {
      if (is_odd) {
        load_next(even);
        multiply(odd);
      } else {
        load_next(odd);
        multiply(even);
      }
      finish_chunk();
    }
  }
#endif
}

}  // namespace convswap::pointwise
