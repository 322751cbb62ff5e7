#pragma once

// The kernel of `channels_last_mma` for compute capability 7.5, which has smaller mmas and no cp.async. The
// next K chunk waits in registers: a thread loads it between the mmas of this one, and then stores it in the
// only stage. So several blocks fit into the 64 KB of shared memory of a multiprocessor.

#include "cuda/channels_last_mma/common.cuh"

namespace convswap::channels_last_mma {

// A thread's loads, into registers.
template <typename Sizes, typename Element>
class RegisterLoads : public Sources<Sizes, Element> {
 public:
  using Sources<Sizes, Element>::Sources;

  // Loads the rows of part `part`, out of kParts, of the K chunk.
  __device__ void load(int part) {
#pragma unroll
    for (int i = 0; i < Sizes::kPixelRows; ++i) {
      if (i % Sizes::kParts != part) continue;
      const auto source = this->pixels(i);
      pixels_[i] = make_uint4(0, 0, 0, 0);
      if (source.is_read) pixels_[i] = *reinterpret_cast<const uint4*>(source.from);
    }
#pragma unroll
    for (int i = 0; i < Sizes::kWeightRows; ++i) {
      if (i % Sizes::kParts == part) weights_[i] = *reinterpret_cast<const uint4*>(this->weights(i));
    }
  }
  __device__ void load() {
#pragma unroll
    for (int part = 0; part < Sizes::kParts; ++part) load(part);
  }

  __device__ void store(unsigned char* stage) const {
#pragma unroll
    for (int i = 0; i < Sizes::kPixelRows; ++i) {
      *reinterpret_cast<uint4*>(stage + this->pixel_target(i)) = pixels_[i];
    }
#pragma unroll
    for (int i = 0; i < Sizes::kWeightRows; ++i) {
      *reinterpret_cast<uint4*>(stage + this->weight_target(i)) = weights_[i];
    }
  }

 private:
  uint4 pixels_[Sizes::kPixelRows], weights_[Sizes::kWeightRows];
};

// Accumulates all K chunks of the tile, of which the first is in registers. At the end the stage is free.
template <typename Sizes, typename Element>
__device__ inline void mainloop(const Arguments<Element>& problem, RegisterLoads<Sizes, Element>& loads,
                                Multiplier<Sizes, Element>& multiplier) {
  unsigned char* const stage = shared_memory_at(problem.shared.stages);
#pragma unroll 1
  for (int chunk = 1; chunk < problem.chunks; ++chunk) {
    loads.store(stage);
    __syncthreads();
    loads.advance();
    loads.locate();
    multiplier.multiply(stage, [&](int part) { loads.load(part); });
    __syncthreads();  // all warps have read the stage
  }
  loads.store(stage);
  __syncthreads();
  multiplier.multiply(stage, [](int) {});
  __syncthreads();
}

// The least number of blocks whose registers fit into a multiprocessor.
constexpr int min_blocks_75(int accumulators) { return accumulators > 32 ? 2 : 3; }

// The implicit GEMM: a block computes a tile. `prepare` has written the weights. Template parameters as in
// Instance (family.h).
template <typename Element, int kPositions, int kFilters, int kPositionWarps, int kFilterWarps>
__global__ void __launch_bounds__(32 * kPositionWarps * kFilterWarps,
                                  min_blocks_75(kPositions* kFilters / (32 * kPositionWarps * kFilterWarps)))
    kernel_75(const __grid_constant__ Arguments<Element> problem) {
  using Sizes = TileSizes<kPositions, kFilters, kPositionWarps, kFilterWarps, 75>;
  const BlockTile tile(problem, kPositions, kFilters);
  write_first_pixels<Sizes>(problem, tile);
  __syncthreads();
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  RegisterLoads<Sizes, Element> loads(problem, tile);
  loads.locate();
  loads.load();
  compute_tile<Sizes>(problem, tile, [&](auto& multiplier) { mainloop(problem, loads, multiplier); });
}

}  // namespace convswap::channels_last_mma
