#pragma once

// The kernel of the algorithm `pointwise`; pointwise.cc tells the idea.

#include "cuda/epilogue/activations.cuh"
#include "cuda/pointwise/arguments.h"
#include "cuda/pointwise/operands.cuh"
#include "cuda/primitives/dependent_launch.cuh"
#include "cuda/primitives/global_memory.cuh"
#include "cuda/primitives/warpgroup.cuh"
#include "cuda/primitives/wgmma.cuh"

namespace convswap::pointwise {

// Stores the results of a tile: of a thread's two pixels for every eight filters two, neighbours.
template <int kTiles, typename Element>
class Results {
 public:
  __device__ Results(const Arguments<Element>& problem, const ThreadPixels& own, int tile, int first,
                     int first_of_all)
      : problem_(problem),
        filter_(own.quarter * 2),
        left_(problem.filters - first - filter_),
        plane_(problem.output_plane.divisor) {
    // Of filters and pixels that are none the first residual is added, and nothing is stored.
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const unsigned number = own.number(tile, i);
      exist_[i] = number < problem.pixels;
      const Pixel pixel(problem, exist_[i] ? number : 0u);
      at_[i] =
          (static_cast<long long>(pixel.image) * problem.out_channels + first_of_all + filter_) * plane_ +
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
    if (problem_.following.epilogue.activation != Activation::none) {
      finish_many(problem_.following, [&](auto finish) {
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
  using Of = Numbers<Element>;
  using Pair = typename Of::Pair;

  __device__ bool is_filter(int t, int j) const { return t * kTileFilters + j < left_; }

  __device__ void add_pairs(float (&accumulators)[kTiles][4]) const {
    const Element* from = problem_.z + at_[0];
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      // A few at a time: not all fit into registers.
      if (t % 4 == 0) asm volatile("" ::: "memory");
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const bool is_there = exist_[0] && is_filter(t, j);
        const float2 both = Of::floats_of(*reinterpret_cast<const Pair*>(
            is_there ? from + j * static_cast<long long>(plane_) : problem_.z));
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
          const bool is_there = exist_[i] && is_filter(t, j);
          accumulators[t][2 * i + j] +=
              static_cast<float>(*(is_there ? from + j * static_cast<long long>(plane_) : problem_.z));
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
        store_global_if(exist_[0] && is_filter(t, j), beyond(to, j),
                        Of::pair_of(accumulators[t][j], accumulators[t][2 + j]));
      }
      to = beyond(to, kTileFilters);
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
          store_global_if(exist_[i] && is_filter(t, j), beyond(to, j),
                          Of::one_of(accumulators[t][2 * i + j]));
        }
        to = beyond(to, kTileFilters);
      }
    }
  }

  // In another plane.
  __device__ unsigned long long beyond(unsigned long long address, unsigned planes) const {
    return address_at(address, planes, plane_ * static_cast<unsigned>(sizeof(Element)));
  }

  const Arguments<Element>& problem_;
  int filter_, left_;
  unsigned plane_;
  long long at_[2];
  bool exist_[2];
};

// Blocks stay; a row of the grid has the filters of a block of a group, whose warpgroups take tiles in turns.
template <typename Element, int kTiles, int kWarpgroups, int kSteps, int kSlots>
__global__ void __launch_bounds__(128 * kWarpgroups, 1)
    kernel(const __grid_constant__ Arguments<Element> problem) {
#if defined(__CUDA_ARCH__) && !defined(__CUDA_ARCH_FEAT_SM90_ALL)
#error "pointwise has code for compute capability 9.0 alone: compile it for sm_90a"
#else
  constexpr int kFilters = kTiles * kTileFilters;
  static_assert(kFilters <= 128 * kWarpgroups);  // a thread has each bias
  constexpr int kCoresOfStep = kDepthBytes / kCoreBytes;
  extern __shared__ __align__(128) unsigned char shared[];
  const int cores = problem.chunks * kSteps * kCoresOfStep;
  const Filters<kFilters> filters{reinterpret_cast<uint4*>(shared),
                                  reinterpret_cast<float*>(shared + cores * kFilters * kCoreBytes)};
  const int group = problem.blocks_of_group.quotient_of_any(blockIdx.y);
  const int first = (blockIdx.y - group * static_cast<int>(problem.blocks_of_group.divisor)) * kFilters;
  const int first_of_all = group * problem.filters + first;
  griddepcontrol_wait_unless(problem.weights_are_constant);
  filters.start_copies(problem, cores, first, first_of_all);
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  const Element bias = filters.bias_of_thread(problem, first, first_of_all);
  const int stride = gridDim.x * kWarpgroups;
  int tile = blockIdx.x * kWarpgroups + warpgroup_index();
  const ThreadPixels own(problem.stores_pairs);
  ChunkLoader<Element, kSteps> loader(problem, own, group, tile, stride);
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
    for (int step = 0; step < kSteps; ++step) Numbers<Element>::finish(current[step]);
    SmemDescriptor weights = all_weights.advanced(chunk * (kSteps * kCoresOfStep * kFilters));
    wgmma_fence(accumulators);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      wgmma<typename Numbers<Element>::Product, kTiles>(accumulators, current[step], weights);
      weights = weights.advanced(kCoresOfStep * kFilters);
    }
    wgmma_commit_and_wait(accumulators);
  };
  const auto finish_chunk = [&] {
    if (++chunk < problem.chunks) return;
    Results<kTiles, Element>(problem, own, tile, first, first_of_all).store(accumulators, filters.bias);
    clear();
    chunk = 0;
    tile += stride;
  };
  if constexpr (kSlots > 0) {
    Slots<Element, kSteps, kSlots> slots(reinterpret_cast<unsigned char*>(filters.bias + kFilters));
    slots.fill(loader);
    filters.template finish<kSlots - 1>(cores, bias);
    clear();
    while (tile < problem.tiles) {
      Chunk<kSteps> current;
      slots.take_next(loader, current);
      multiply(current);
      finish_chunk();
    }
  } else {
    // Two chunks take turns: while one is multiplied the other is being loaded.
    Chunk<kSteps> even, odd;
    const auto load_next = [&](Chunk<kSteps>& to) { loader.load_next(InRegisters<Element, kSteps>(to)); };
    load_next(even);
    filters.template finish<0>(cores, bias);
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
