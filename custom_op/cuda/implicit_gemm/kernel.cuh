#pragma once

// The kernel of the algorithm `implicit_gemm`; implicit_gemm.cc tells the idea and fills the arguments.

#include "cuda/implicit_gemm/image.cuh"
#include "cuda/implicit_gemm/results.cuh"
#include "cuda/implicit_gemm/weights.cuh"
#include "cuda/primitives/dependent_launch.cuh"
#include "cuda/primitives/mbarrier.cuh"
#include "cuda/primitives/pipeline_state.cuh"
#include "cuda/primitives/registers.cuh"
#include "cuda/primitives/shared_memory_at.cuh"
#include "cuda/primitives/tma.cuh"
#include "cuda/primitives/warpgroup.cuh"
#include "cuda/primitives/wgmma.cuh"

namespace convswap::implicit_gemm {

// What a block works on.
struct Share {
  int first_channel, first_filter, filters;

  template <typename Element>
  __device__ explicit Share(const Arguments<Element>& problem) {
    const int group = blockIdx.y / problem.filter_blocks;
    const int of_group = blockIdx.y % problem.filter_blocks * problem.block_filters;
    first_channel = group * problem.channels;
    first_filter = group * problem.filters + of_group;
    filters = min(problem.block_filters, problem.filters - of_group);
  }
};

template <typename Element>
__device__ inline BlockState& state_of_block(const Arguments<Element>& problem) {
  return *shared_memory_at(problem.shared.state);
}
template <typename Element>
__device__ inline unsigned char* slot_of(const Arguments<Element>& problem, int index) {
  return shared_memory_at(problem.shared.slots) + index * problem.slot_places * kPlaceBytes;
}

// How far a role has come, which goes on where weights take several windows.
struct Progress {
  PipelineState<kSlots> slots;
  DynamicPipelineState loads;
  int stored = 0;  // of the images in slots, those that were stored or added

  __device__ int buffer(int buffers) const { return buffers == 1 ? 0 : stored % kMostBuffers; }
  __device__ unsigned buffer_phase(int buffers) const {
    return (buffers == 1 ? stored : stored / kMostBuffers) & 1;
  }
};

// Lets consumers have a converted image; by every producer.
template <typename Element>
__device__ inline void commit_slot(const Arguments<Element>& problem, Progress& progress, SlotState task) {
  BlockState& state = state_of_block(problem);
  if (threadIdx.x == 0) state.slots[progress.slots.stage()] = task;
  mbarrier_arrive(&state.converted[progress.slots.stage()]);
  progress.slots.advance();
}

template <typename Element>
__device__ inline void acquire_slot(const Arguments<Element>& problem, const Progress& progress) {
  mbarrier_wait(&state_of_block(problem).multiplied[progress.slots.stage()], progress.slots.phase() ^ 1);
}

// Where the next image goes, and the guess for it.
struct Next {
  PipelineState<kSlots> slots;
  int top;
};

// Converts an image again that does not fit the guess of how large it is, from global memory and as often as
// it has windows of binades. `range` is what the thread has seen of it.
template <typename Format, typename Element = typename Format::Element>
__device__ __noinline__ Next convert_apart(const Arguments<Element>& problem, int image, int top,
                                           ValueRange<Element> range, bool can_multiply,
                                           PipelineState<kSlots> slots, int weight_window) {
  BlockState& state = state_of_block(problem);
  Progress progress;
  progress.slots = slots;
  const ValueRange<Element> whole = reduce_threads(range, state, threadIdx.x == 0,
                                                   [] { named_barrier_sync(kProducerBarrier, kProducers); });
  if (!can_multiply || !whole.is_finite()) {
    // With the first window of the weights it is computed at once.
    if (weight_window == 0) commit_slot(problem, progress, {image, top, Task::define});
    return {progress.slots, top};
  }
  if constexpr (Format::kIsScaled) {
    const int windows = whole.windows();
    for (int window = 0; window < windows; ++window) {
      if (window > 0) acquire_slot(problem, progress);
      const int window_top = whole.top() - window * kBinades;
      for (int chunk = 0; chunk < problem.chunks; ++chunk) {
        const Chunk<Element> own(problem, image, Share(problem).first_channel, chunk);
        convert<Format, true>(problem, chunk, own.channels, problem.x + own.begin,
                              shared_memory_at(problem.shared.pixels), BinadeWindow(window_top),
                              slot_of(problem, progress.slots.stage()), range);
      }
      fence_proxy_async();
      named_barrier_sync(kProducerBarrier, kProducers);
      commit_slot(problem, progress,
                  {image, window_top, weight_window + window > 0 ? Task::add : Task::store});
    }
    top = whole.top();
  }
  return {progress.slots, top};
}

// Loads and converts images, one after the other.
template <typename Format, typename Element = typename Format::Element>
__device__ inline void convert_images(const Arguments<Element>& problem, int weight_window, bool can_multiply,
                                      Progress& progress) {
  BlockState& state = state_of_block(problem);
  const int first_channel = Share(problem).first_channel;
  const auto stage_at = [&](int stage) {
    return shared_memory_at(problem.shared.stages) + stage * problem.stage_bytes;
  };
  // Starts the next load of the block, if there is one.
  int loaded_image = blockIdx.x, loaded_chunk = 0;
  const auto start = [&](int stage) {
    if (threadIdx.x != 0 || loaded_image >= problem.batch) return;
    tma_load_1d(problem, Chunk<Element>(problem, loaded_image, first_channel, loaded_chunk), stage_at(stage),
                &state.loaded[stage]);
    if (++loaded_chunk == problem.chunks) loaded_chunk = 0, loaded_image += gridDim.x;
  };
  for (int i = 0; i < problem.stages; ++i) start((progress.loads.stage + i) % problem.stages);
  int top = kFirstTop;
  for (int image = blockIdx.x; image < problem.batch; image += gridDim.x) {
    acquire_slot(problem, progress);
    ValueRange<Element> range;
    bool all_fit = can_multiply;
    for (int chunk = 0; chunk < problem.chunks; ++chunk) {
      const Chunk<Element> own(problem, image, first_channel, chunk);
      mbarrier_wait(&state.loaded[progress.loads.stage], progress.loads.phase);
      const Element* const from =
          reinterpret_cast<const Element*>(stage_at(progress.loads.stage)) + own.beyond(problem);
      range =
          convert<Format, false>(problem, chunk, own.channels, from, shared_memory_at(problem.shared.pixels),
                                 BinadeWindow(top), slot_of(problem, progress.slots.stage()), range);
      fence_proxy_async();
      all_fit = named_barrier_sync_all(kProducerBarrier, kProducers, fits<Format>(range, top)) && all_fit;
      start(progress.loads.stage);
      progress.loads.advance(problem.stages);
    }
    if (all_fit) {
      commit_slot(problem, progress, {image, top, weight_window > 0 ? Task::add : Task::store});
    } else {
      const Next next =
          convert_apart<Format>(problem, image, top, range, can_multiply, progress.slots, weight_window);
      progress.slots = next.slots, top = next.top;
    }
  }
  acquire_slot(problem, progress);
  commit_slot(problem, progress, {0, 0, Task::end});
}

// Begins sums = the products of a converted image's columns, from `image` on, and all weights; calls
// end_turn() when so few are left that the other warpgroup had better begin.
template <typename Format, int kTiles, typename EndTurn, typename Element = typename Format::Element>
__device__ inline void begin_sums(const Arguments<Element>& problem, SmemDescriptor image,
                                  const HeldWeights& held, SmemDescriptor weights, EndTurn end_turn,
                                  float (&accumulators)[kTiles][4]) {
  using Number = typename Format::Number;
  image = image.warp_uniform();
  wgmma_fence();
  const auto correct = [&] { scale_accumulators(accumulators, Format::kCorrectionScale); };
  for_each_term<Format, Format::kTerms>(correct, [&](int term) {
    const bool is_last = term == Format::kTerms - 1;
    const SmemDescriptor b = image.advanced(Format::pixel_part(term) * problem.part_places);
    int first = 0, staged = problem.steps - problem.steps_held;
    if (Format::weight_part(term) == 0) {
#pragma unroll
      for (int step = 0; step < kHeldSteps; step += kStepsAtOnce) {
        if (step == 0 || step < problem.steps_held) {
          if (is_last && step == problem.turn_ends) end_turn();
#pragma unroll
          for (int i = step; i < step + kStepsAtOnce; ++i) {
            const SmemDescriptor shifted = b.advanced(problem.step_places[i]);
            if (term == 0 && i == 0) {
              wgmma_overwrite<Number, kTiles>(accumulators, held.of_step[i], shifted);
            } else {
              wgmma<Number, kTiles>(accumulators, held.of_step[i], shifted);
            }
          }
        }
      }
      first = problem.steps_held, staged = 0;
    }
#pragma unroll 1
    for (int step = first; step < problem.steps; step += kStepsAtOnce) {
      if (is_last && step == problem.turn_ends) end_turn();
#pragma unroll
      for (int i = 0; i < kStepsAtOnce; ++i) {
        wgmma<Number, kTiles>(accumulators, weights.advanced((staged + step - first + i) * kStepUnits),
                              b.advanced(problem.step_places[step + i]));
      }
    }
  });
}

// Multiplies converted images and writes their results: a warpgroup of two, which take turns at the tensor
// cores, so that one writes while the other multiplies.
template <typename Format, int kTiles, typename Element = typename Format::Element>
__device__ inline void multiply_images(const Arguments<Element>& problem, const Weights<Format>& weights,
                                       Progress& progress) {
  BlockState& state = state_of_block(problem);
  const Share share(problem);
  const int warpgroup = warpgroup_index() - 1;
  unsigned* const staged_weights = shared_memory_at(problem.shared.weights());
  const RowWeights<Format> row_weights(problem, weights);
  const HeldWeights held(problem, row_weights,
                         reinterpret_cast<unsigned*>(shared_memory_at(problem.shared.results)));
  const int of_first = problem.steps - problem.steps_held;
  row_weights.stage(problem, 0, problem.steps_held, of_first, staged_weights);
  if constexpr (Format::kParts > 1) {
    row_weights.stage(problem, 1, 0, problem.steps, staged_weights + of_first * kStepUnits * 4);
  }
  fence_proxy_async();
  named_barrier_sync(kConsumerBarrier, kConsumers);
  const SmemDescriptor staged = SmemDescriptor::at(staged_weights, kRows).warp_uniform();

  RowScale* const scales = shared_memory_at(problem.shared.scales) + warpgroup * kRows;
  int scaled_for = 0;
  bool are_scaled = false, are_first = false, are_far = false;
  for (;;) {
    const int slot = progress.slots.stage();
    mbarrier_wait(&state.converted[slot], progress.slots.phase());
    const SlotState own = state.slots[slot];
    progress.slots.advance();
    if (own.task == Task::define || own.task == Task::end) {
      mbarrier_arrive(&state.multiplied[slot]);
      if (own.task == Task::end) return;
      compute_as_defined(problem, own.image, share.first_filter, share.filters);
      continue;
    }
    if (!are_scaled || scaled_for != own.top || are_first != (own.task == Task::store)) {
      are_scaled = true, scaled_for = own.top, are_first = own.task == Task::store;
      sync_warpgroup(warpgroup_index());
      const bool is_near = find_scales<Format>(problem, shared_memory_at(problem.shared.tops), weights.window,
                                               own.top, share.first_filter, share.filters, are_first, scales);
      are_far = !sync_warpgroup_all(warpgroup_index(), is_near);
    }
    const SmemDescriptor image = SmemDescriptor::at(slot_of(problem, slot), 0);
    const int buffer = progress.buffer(problem.buffers);
    const unsigned buffer_phase = progress.buffer_phase(problem.buffers);
    const unsigned first_chunk = static_cast<unsigned>(progress.stored) * problem.output_chunks;
    ++progress.stored;
    const int beyond = results_beyond(problem, own.image, share.first_filter);
    const SharedAddress results = shared_address(shared_memory_at(problem.shared.results)) +
                                  buffer * problem.buffer_bytes + beyond * static_cast<int>(sizeof(Element));
    const bool writes_pairs = problem.writes_pairs && beyond % 2 == 0;
    // Neighbouring threads' in neighbouring banks.
    const SharedAddress unread =
        shared_address(shared_memory_at(problem.shared.unread)) +
        (threadIdx.x - (kThreads - kConsumers)) * (writes_pairs ? kUnreadBytes : kUnreadBytes / 2);
    int chunk = static_cast<int>((first_chunk + warpgroup) % kConsumerWarpgroups);
    if (chunk >= problem.output_chunks) mbarrier_arrive(&state.multiplied[slot]);
    bool is_waited_for = false;
    for (; chunk < problem.output_chunks; chunk += kConsumerWarpgroups) {
      float accumulators[kTiles][4];
      // Its turns have the numbers of every second chunk.
      mbarrier_wait(&state.turns[warpgroup],
                    (first_chunk + chunk) / kConsumerWarpgroups & 1 ^ (warpgroup == 0 ? 1 : 0));
      begin_sums<Format, kTiles>(
          problem, image.advanced(chunk * kTiles * kTileColumns), held, staged,
          [&] { mbarrier_arrive(&state.turns[1 - warpgroup]); }, accumulators);
      // With two buffers no filters are late, and both places one.
      Writing<kTiles> writing(scales, shared_memory_at(problem.shared.outputs) + chunk * kOutputsOfChunk,
                              buffer_phase);
      wgmma_commit_and_wait(accumulators);
      if (chunk + kConsumerWarpgroups >= problem.output_chunks) mbarrier_arrive(&state.multiplied[slot]);
      if (!is_waited_for) mbarrier_wait(&state.stored[buffer], buffer_phase ^ 1);
      is_waited_for = true;
      writing.template write<Format>(results, unread, are_far, chunk >= problem.first_ragged, writes_pairs,
                                     accumulators);
    }
    if (!is_waited_for) mbarrier_wait(&state.stored[buffer], buffer_phase ^ 1);
    fence_proxy_async();
    mbarrier_arrive(&state.written[buffer]);
  }
}

// How the results of a window are added. A copy that adds may take subnormal numbers for zeros, so that it
// does only where none can come of the products, which lie up to 29 binades below the uppermost of either
// factor and end as far below as they have bits, and of the bias. `top`: of the window of the input.
template <typename Element>
__device__ inline Storing way_of_adding(const Arguments<Element>& problem, const Share& share, int top,
                                        int weight_window) {
  constexpr int kLeast = -126 + 2 * kBinades + 24;
  const int* const tops = shared_memory_at(problem.shared.tops);
  for (int filter = 0; filter < share.filters; ++filter) {
    const unsigned bias =
        problem.b == nullptr ? 0u : absolute_bits(static_cast<float>(problem.b[share.first_filter + filter]));
    if (top + tops[filter] - weight_window * kBinades < kLeast ||
        (bias != 0u && bias < bits_of_power(-126 + 24))) {
      return Storing::add_exactly;
    }
  }
  return Storing::add;
}

// Stores the results of images: one warp.
template <typename Element>
__device__ inline void store_images(const Arguments<Element>& problem, int weight_window,
                                    Progress& progress) {
  BlockState& state = state_of_block(problem);
  const Share share(problem);
  for (;;) {
    const int slot = progress.slots.stage();
    mbarrier_wait(&state.converted[slot], progress.slots.phase());
    const SlotState own = state.slots[slot];
    mbarrier_arrive(&state.multiplied[slot]);
    progress.slots.advance();
    if (own.task == Task::end) break;
    if (own.task == Task::define) continue;
    const int buffer = progress.buffer(problem.buffers);
    const unsigned buffer_phase = progress.buffer_phase(problem.buffers);
    mbarrier_wait(&state.written[buffer], buffer_phase);
    ++progress.stored;
    Storing storing = Storing::store;
    if (own.task == Task::add) {
      storing = way_of_adding(problem, share, own.top, weight_window);
      tma_store_wait_group();
      __syncwarp();
    }
    const unsigned char* const results =
        shared_memory_at(problem.shared.results) + buffer * problem.buffer_bytes;
    const int early = max(0, share.filters - problem.late_filters);
    store_results(problem, own.image, share.first_filter, 0, early, storing, results);
    tma_store_wait_group_read();
    __syncwarp();  // or lanes would ask for the next image while the first one waits
    mbarrier_arrive(&state.stored[buffer]);
    // The next image writes its own to their other place. The one after it may write here once `stored` of
    // the next has come, before which this warp waits until all of its copies, these among them, have read.
    if (early < share.filters) {
      store_results(problem, own.image, share.first_filter, early, share.filters, storing,
                    results + kLateGap + buffer_phase * problem.late_bytes);
    }
  }
  tma_store_wait_group();
}

// Persistent blocks, each of which takes whole images; grid.y is the groups and their blocks of filters.
template <typename Format, int kTiles>
__global__ void __launch_bounds__(kThreads, 1)
    kernel(const __grid_constant__ Arguments<typename Format::Element> problem) {
#if defined(__CUDA_ARCH__) && !defined(__CUDA_ARCH_FEAT_SM90_ALL)
#error "implicit_gemm has code for compute capability 9.0 alone: compile it for sm_90a"
#else
  using Element = typename Format::Element;
  griddepcontrol_wait();
  BlockState& state = state_of_block(problem);
  const Share share(problem);
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);

  find_places(problem, shared_memory_at(problem.shared.pixels));
  find_outputs<kTiles * kTileColumns>(problem, shared_memory_at(problem.shared.outputs));
  // Places between rows stay zeros.
  for (int i = threadIdx.x; i < kSlots * problem.slot_places; i += kThreads) {
    reinterpret_cast<uint4*>(shared_memory_at(problem.shared.slots))[i] = make_uint4(0u, 0u, 0u, 0u);
  }
  if (threadIdx.x == 0) {
    state.most = 0u, state.least_less_one = ~0u, state.weight_windows = 1u;
    for (int i = 0; i < problem.stages; ++i) tma_mbarrier_init(&state.loaded[i]);
    for (int i = 0; i < kSlots; ++i) {
      mbarrier_init(&state.converted[i], kProducers);
      mbarrier_init(&state.multiplied[i], kConsumers + kStorers);
    }
    for (int i = 0; i < problem.buffers; ++i) {
      mbarrier_init(&state.written[i], kConsumers);
      mbarrier_init(&state.stored[i], kStorers);
    }
    for (int i = 0; i < kConsumerWarpgroups; ++i)
      mbarrier_init(&state.turns[i], kConsumers / kConsumerWarpgroups);
  }
  fence_proxy_async();

  // Where there is room the weights are read from shared memory, since each is asked for more than once.
  const int size = problem.channels * problem.filter_height * problem.filter_width;
  const int weights = share.filters * size;
  const Element* const all_weights = problem.w + static_cast<long long>(share.first_filter) * size;
  Element* const room = reinterpret_cast<Element*>(shared_memory_at(problem.shared.results) + kStagedBytes);
  const bool has_room = kStagedBytes + weights * static_cast<int>(sizeof(Element)) <= problem.results_bytes;
  int* const tops = shared_memory_at(problem.shared.tops);
  Progress progress;
  int windows = 1;
  for (int window = 0; window < windows; ++window) {
    if (has_room) copy_weights(all_weights, weights, room);
    __syncthreads();
    const Element* const from = has_room ? room : all_weights;
    if (window == 0) {
      measure_filters<Format>([&](int filter) { return from + static_cast<long long>(filter) * size; },
                              share.filters, size, tops, &state.weight_windows);
      __syncthreads();
    }
    const bool can_multiply = state.weight_windows != ~0u;
    windows = can_multiply ? static_cast<int>(state.weight_windows) : 1;
    if (warp < 4) {
      setmaxnreg_dec<kRegistersOfProducers>();
      if (warp < kProducers / 32) {
        convert_images<Format>(problem, window, can_multiply, progress);
      } else {
        store_images(problem, window, progress);
      }
      sync_warpgroup(0);  // all four warps, before their registers change again
      setmaxnreg_inc<kRegisters>();
    } else {
      setmaxnreg_inc<kRegistersOfConsumers>();
      multiply_images<Format, kTiles>(problem, Weights<Format>{from, tops, share.filters, window}, progress);
      setmaxnreg_dec<kRegisters>();
    }
    __syncthreads();
  }
#endif
}

}  // namespace convswap::implicit_gemm
