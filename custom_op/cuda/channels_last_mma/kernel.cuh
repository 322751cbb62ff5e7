#pragma once

// The kernel of `channels_last_mma` for compute capability 8.0 and newer, which loads K chunks by cp.async.

#include "cuda/channels_last_mma/common.cuh"
#include "cuda/primitives/cp_async.cuh"

namespace convswap::channels_last_mma {

// A thread's loads, by cp.async.
template <typename Sizes, typename Element>
struct Loads : Sources<Sizes, Element> {
  using Sources<Sizes, Element>::Sources;

  // Copies the rows of part `part`, out of kParts, of the K chunk to a stage.
  __device__ void copy(unsigned char* stage, int part) const {
#pragma unroll
    for (int i = 0; i < Sizes::kPixelRows; ++i) {
      if (i % Sizes::kParts != part) continue;
      const auto source = this->pixels(i);
      cp_async_zfill<kPieceBytes>(stage + this->pixel_target(i), source.from, source.is_read);
    }
#pragma unroll
    for (int i = 0; i < Sizes::kWeightRows; ++i) {
      if (i % Sizes::kParts == part) cp_async_16(stage + this->weight_target(i), this->weights(i));
    }
  }
  __device__ void copy(unsigned char* stage) const {
#pragma unroll
    for (int part = 0; part < Sizes::kParts; ++part) copy(stage, part);
  }
};

// Waits for this thread's copies of the next K chunk, the oldest of stages - 1 groups.
__device__ inline void wait_for_chunk(int stages) {
  if (stages == 2) return cp_async_wait_group<0>();
  if (stages == 3) return cp_async_wait_group<1>();
  if (stages == 4) return cp_async_wait_group<2>();
  cp_async_wait_group<3>();
}

// Copies the first K chunks of the tile to all stages but one.
template <typename Sizes, typename Element>
__device__ inline void copy_first_chunks(const Arguments<Element>& problem, Loads<Sizes, Element>& loads) {
  for (int chunk = 0; chunk < problem.stages - 1; ++chunk) {
    if (chunk < problem.chunks) {
      loads.locate();
      loads.copy(shared_memory_at(problem.shared.stages) + chunk * Sizes::kStageBytes);
      loads.advance();
    }
    cp_async_commit_group();
  }
}

// Accumulates all K chunks of the tile. At the end the stages are free.
template <typename Sizes, typename Element>
__device__ inline void mainloop(const Arguments<Element>& problem, Loads<Sizes, Element>& loads,
                                Multiplier<Sizes, Element>& multiplier) {
  unsigned char* const first_stage = shared_memory_at(problem.shared.stages);
  const int stages = problem.stages, chunks = problem.chunks;
  int stage = 0, load_stage = stages - 1;
  const auto begin_chunk = [&] {
    wait_for_chunk(stages);
    // All warps have read the stage that is loaded next.
    __syncthreads();
  };
  const auto end_chunk = [&] {
    cp_async_commit_group();
    if (++stage == stages) stage = 0;
    if (++load_stage == stages) load_stage = 0;
  };
  int chunk = 0;
#pragma unroll 1
  for (; chunk < chunks - (stages - 1); ++chunk) {
    begin_chunk();
    loads.locate();
    unsigned char* const to = first_stage + load_stage * Sizes::kStageBytes;
    multiplier.multiply(first_stage + stage * Sizes::kStageBytes, [&](int part) { loads.copy(to, part); });
    loads.advance();
    end_chunk();
  }
#pragma unroll 1
  for (; chunk < chunks; ++chunk) {
    begin_chunk();
    multiplier.multiply(first_stage + stage * Sizes::kStageBytes, [](int) {});
    end_chunk();
  }
  cp_async_wait_group<0>();
  __syncthreads();
}

// The least number of blocks that fit into the registers of a multiprocessor.
constexpr int min_blocks(int threads, int accumulators) {
  return threads > 128 ? 1 : accumulators > 64 ? 2 : accumulators > 32 ? 3 : 4;
}

// The implicit GEMM: a block computes a tile. `prepare` has written the weights. Template parameters as in
// Instance (family.h).
template <typename Element, int kPositions, int kFilters, int kPositionWarps, int kFilterWarps>
__global__ void __launch_bounds__(32 * kPositionWarps * kFilterWarps,
                                  min_blocks(32 * kPositionWarps * kFilterWarps,
                                             kPositions* kFilters / (32 * kPositionWarps * kFilterWarps)))
    kernel(const __grid_constant__ Arguments<Element> problem) {
  using Sizes = TileSizes<kPositions, kFilters, kPositionWarps, kFilterWarps, 80>;
  const BlockTile tile(problem, kPositions, kFilters);
  write_first_pixels<Sizes>(problem, tile);
  __syncthreads();
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  Loads<Sizes, Element> loads(problem, tile);
  copy_first_chunks(problem, loads);
  // Behind the copies, which take longer to arrive.
  compute_tile<Sizes>(problem, tile, [&](auto& multiplier) { mainloop(problem, loads, multiplier); });
}

}  // namespace convswap::channels_last_mma
