#pragma once

// The kernel of the algorithm `row_windows`; row_windows.cc tells the idea, plan.cc fills the arguments.

#include "cuda/primitives/arrival_barrier.cuh"
#include "cuda/primitives/dependent_launch.cuh"
#include "cuda/primitives/registers.cuh"
#include "cuda/primitives/ring.cuh"
#include "cuda/primitives/warpgroup_barrier.cuh"
#include "cuda/row_windows/results.cuh"
#include "cuda/row_windows/weights.cuh"
#include "cuda/row_windows/windows.cuh"

namespace convswap::row_windows {

// The parts of a block's shared memory.
template <typename Element>
struct Parts {
  uint4 *weights, *slots;
  Segment* segments;
  int* outputs;
  float* bias;
  BlockState& state;
  int slot_places;

  __device__ Parts(const Arguments<Element>& problem, unsigned char* shared)
      : weights(reinterpret_cast<uint4*>(problem.shared.weights.in(shared))),
        slots(reinterpret_cast<uint4*>(problem.shared.slots.in(shared))),
        segments(problem.shared.segments.in(shared)),
        outputs(problem.shared.outputs.in(shared)),
        bias(problem.shared.bias.in(shared)),
        state(*problem.shared.state.in(shared)),
        slot_places(problem.slot_places) {}

  __device__ uint4* slot(int number) const { return slots + number * slot_places; }
};

// Puts the windows of the block's bands into slots, one after the other.
template <typename Element>
__device__ inline void produce(const Arguments<Element>& problem, const Parts<Element>& parts,
                               const Share& share) {
  Ring<kSlots> ring;
  for (int tile = blockIdx.x; tile < problem.tiles; tile += gridDim.x, ring.advance()) {
    wait(&parts.state.windows_are_free[ring.stage()], ring.phase() ^ 1);
    const Band band(problem, tile);
    uint4* const slot = parts.slot(ring.stage());
    switch (problem.words_of_step) {
      case 0:
        if constexpr (sizeof(Element) == 2) {
          put_windows_of_words<0>(problem, share, band, parts.segments, slot);
        }
        break;
      case 1:
        put_windows_of_words<1>(problem, share, band, parts.segments, slot);
        break;
      case 2:
        put_windows_of_words<2>(problem, share, band, parts.segments, slot);
        break;
      case 4:
        put_windows_of_words<4>(problem, share, band, parts.segments, slot);
        break;
      default:
        put_windows(problem, share, band, parts.segments, slot);
    }
    show_to_copies_and_products();
    arrive(&parts.state.windows_are_there[ring.stage()]);
  }
}

// Multiplies the windows of the block's bands with all weights, and stores the results: the warpgroups take
// the columns of a band in turns.
template <typename Element>
__device__ inline void consume(const Arguments<Element>& problem, const Parts<Element>& parts,
                               const Share& share) {
  const int warpgroup = warpgroup_of_block() - kProducers / kWarpgroup;
  const SharedMatrix all_weights = SharedMatrix::at(parts.weights, kRows).of_warp();
  Results<Element> results(problem, share, parts.bias);
  Ring<kSlots> ring;
  for (int tile = blockIdx.x; tile < problem.tiles; tile += gridDim.x, ring.advance()) {
    results.take(Band(problem, tile));
    wait(&parts.state.windows_are_there[ring.stage()], ring.phase());
    const SharedMatrix windows = SharedMatrix::at(parts.slot(ring.stage()), 0).of_warp();
    // In turns through all bands, of which each may have an odd number.
    int chunk = (ring.uses * problem.column_chunks + warpgroup) % kConsumerWarpgroups;
    if (chunk >= problem.column_chunks) arrive(&parts.state.windows_are_free[ring.stage()]);
    for (; chunk < problem.column_chunks; chunk += kConsumerWarpgroups) {
      float sums[kTiles][4];
      results.begin(sums);
      SharedMatrix weights = all_weights;
      const SharedMatrix columns = windows.advanced(chunk * kColumns);
      begin_warpgroup_products(sums);
#pragma unroll 1
      for (int step = 0; step < problem.steps; ++step) {
        add_warpgroup_product<typename Numbers<Element>::Product, kTiles>(
            sums, weights, columns.advanced(problem.step_places[step]));
        weights = weights.advanced(kPlacesOfStep * kRows);
      }
      finish_warpgroup_products(sums);
      if (chunk + kConsumerWarpgroups >= problem.column_chunks) {
        arrive(&parts.state.windows_are_free[ring.stage()]);
      }
      results.store(sums, parts.outputs + chunk * kColumns);
    }
  }
}

template <typename Element>
__global__ void __launch_bounds__(kThreads, 1) kernel(const __grid_constant__ Arguments<Element> problem) {
#if defined(__CUDA_ARCH__) && !defined(__CUDA_ARCH_FEAT_SM90_ALL)
#error "row_windows has code for compute capability 9.0 alone: compile it for sm_90a"
#else
  extern __shared__ __align__(128) unsigned char shared[];
  const Parts<Element> parts(problem, shared);
  const Share share(problem);
  wait_for_kernels_before();
  let_next_kernel_start();
  if (threadIdx.x == 0) {
    for (int i = 0; i < kSlots; ++i) {
      make_arrival_barrier(&parts.state.windows_are_there[i], kProducers);
      make_arrival_barrier(&parts.state.windows_are_free[i], kConsumers);
    }
  }
  // Places that no band has windows for are read for columns that are none: they stay zeros.
  for (int i = static_cast<int>(threadIdx.x); i < kSlots * problem.slot_places; i += kThreads) {
    parts.slots[i] = make_uint4(0u, 0u, 0u, 0u);
  }
  if (threadIdx.x < kProducers) find_segments(problem, parts.segments);
  __syncthreads();
  if (warpgroup_of_block() < kProducers / kWarpgroup) {
    leave_registers<kRegistersOfProducers>();
    produce(problem, parts, share);
  } else {
    take_registers<kRegistersOfConsumers>();
    const int thread = static_cast<int>(threadIdx.x) - kProducers;
    find_outputs(problem, thread, parts.outputs);
    put_weights(problem, share, thread, parts.weights, parts.bias);
    show_to_copies_and_products();
    sync_threads(kConsumerBarrier, kConsumers);
    consume(problem, parts, share);
  }
#endif
}

}  // namespace convswap::row_windows
