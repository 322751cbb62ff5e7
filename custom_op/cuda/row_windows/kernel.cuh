#pragma once

// The kernel of the algorithm `row_windows`; row_windows.cc tells the idea, plan.cc fills the arguments.

#include "cuda/primitives/dependent_launch.cuh"
#include "cuda/primitives/mbarrier.cuh"
#include "cuda/primitives/registers.cuh"
#include "cuda/primitives/ring.cuh"
#include "cuda/primitives/tma.cuh"
#include "cuda/primitives/warpgroup.cuh"
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

// Puts the windows of the block's bands into slots, one after the other: what is next is loaded before that
// which is there is put.
template <typename Segments, typename Element>
class Producer {
 public:
  __device__ Producer(const Arguments<Element>& problem, const Parts<Element>& parts, const Share& share)
      : problem_(problem),
        parts_(parts),
        own_(problem, share, Segments::column_of(problem, static_cast<int>(threadIdx.x) % 32)),
        tile_(blockIdx.x) {}

  __device__ void run() {
    // Two that take turns: what is under way can't be moved to other registers.
    Segments even, odd;
    own_.take(Band(problem_, tile_));
    even.load(own_, parts_.segments + first_);
    while (tile_ < problem_.tiles) {
      put_and_load(even, odd);
      if (tile_ < problem_.tiles) put_and_load(odd, even);
    }
  }

 private:
  static_assert(kSegmentsAtOnce % (Segments::kAtOnce * kProducerWarps) == 0);

  __device__ void put_and_load(const Segments& there, Segments& next) {
    const bool begins = first_ == warp();
    first_ += Segments::kAtOnce * kProducerWarps;
    const bool ends = first_ >= problem_.segments;
    if (ends) {
      first_ = warp();
      tile_ += gridDim.x;
      if (tile_ < problem_.tiles) own_.take(Band(problem_, tile_));
    }
    if (tile_ < problem_.tiles) next.load(own_, parts_.segments + first_);
    if (begins) wait(&parts_.state.windows_are_free[ring_.stage()], ring_.phase() ^ 1);
    there.put(parts_.slot(ring_.stage()));
    if (ends) {
      show_to_copies_and_products();
      arrive(&parts_.state.windows_are_there[ring_.stage()]);
      ring_.advance();
    }
  }
  static __device__ int warp() { return static_cast<int>(threadIdx.x) / 32; }

  const Arguments<Element>& problem_;
  const Parts<Element>& parts_;
  OwnNumbers<Element> own_;
  Ring<kSlots> ring_;
  int tile_, first_ = warp();  // of what was loaded last
};

template <typename Element>
__device__ inline void produce(const Arguments<Element>& problem, const Parts<Element>& parts,
                               const Share& share) {
  const auto run = [&]<Loading kLoading>() {
    Producer<SegmentsOfWords<Element, kLoading>, Element>(problem, parts, share).run();
  };
  switch (problem.loading) {
    case Loading::numbers:
      Producer<SegmentsOfNumbers<Element>, Element>(problem, parts, share).run();
      break;
    case Loading::half_word_steps:
      if constexpr (sizeof(Element) == 2) run.template operator()<Loading::half_word_steps>();
      break;
    case Loading::word_steps:
      run.template operator()<Loading::word_steps>();
      break;
    case Loading::word_steps_by_pairs:
      run.template operator()<Loading::word_steps_by_pairs>();
      break;
    case Loading::two_word_steps:
      run.template operator()<Loading::two_word_steps>();
      break;
    case Loading::two_word_steps_by_pairs:
      run.template operator()<Loading::two_word_steps_by_pairs>();
      break;
    case Loading::four_word_steps:
      run.template operator()<Loading::four_word_steps>();
      break;
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
