#pragma once

// Kernel of the algorithm `implicit_gemm`. implicit_gemm.cc explains the algorithm and fills the arguments.

#include "cuda/implicit_gemm/image.cuh"
#include "cuda/implicit_gemm/output.cuh"
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

// Filters and input channels of a block.
struct FilterTile {
  int first_channel, first_filter, filters;

  template <typename Element>
  __device__ explicit FilterTile(const Arguments<Element>& problem) {
    const int group = blockIdx.y / problem.filter_blocks;
    const int filter_in_group = blockIdx.y % problem.filter_blocks * problem.block_filters;
    first_channel = group * problem.channels;
    first_filter = group * problem.filters + filter_in_group;
    filters = min(problem.block_filters, problem.filters - filter_in_group);
  }
};

template <typename Element>
__device__ inline BlockState& block_state(const Arguments<Element>& problem) {
  return *shared_memory_at(problem.shared.state);
}
template <typename Element>
__device__ inline unsigned char* slot_at(const Arguments<Element>& problem, int index) {
  return shared_memory_at(problem.shared.slots) + index * problem.slot_vectors * kVectorBytes;
}

// Pipeline position of a role. It carries over to the passes for further binade windows of the weights.
struct Progress {
  PipelineState<kSlots> slots;
  DynamicPipelineState stages;
  int images_stored = 0;  // images of the slots whose results were stored or added

  __device__ int buffer(int buffers) const { return buffers == 1 ? 0 : images_stored % kMaxBuffers; }
  __device__ unsigned buffer_phase(int buffers) const {
    return (buffers == 1 ? images_stored : images_stored / kMaxBuffers) & 1;
  }
};

// Publishes a converted image to the consumers. Called by every producer thread.
template <typename Element>
__device__ inline void commit_slot(const Arguments<Element>& problem, Progress& progress,
                                   SlotState slot_state) {
  BlockState& state = block_state(problem);
  if (threadIdx.x == 0) state.slots[progress.slots.stage()] = slot_state;
  mbarrier_arrive(&state.slot_full[progress.slots.stage()]);
  progress.slots.advance();
}

template <typename Element>
__device__ inline void acquire_slot(const Arguments<Element>& problem, const Progress& progress) {
  mbarrier_wait(&block_state(problem).slot_empty[progress.slots.stage()], progress.slots.phase() ^ 1);
}

// Position in the slots, and the guessed uppermost binade of the next image.
struct SlotAndTop {
  PipelineState<kSlots> slots;
  int top;
};

// Converts an image that does not fit the guessed scale again, from global memory, once for each of its
// binade windows. `range` is the range that this thread has seen.
template <typename Format, typename Element = typename Format::Element>
__device__ __noinline__ SlotAndTop convert_by_windows(const Arguments<Element>& problem, int image, int top,
                                                      ValueRange<Element> range, bool can_multiply,
                                                      PipelineState<kSlots> slots, int weight_window) {
  BlockState& state = block_state(problem);
  Progress progress;
  progress.slots = slots;
  const ValueRange<Element> image_range = reduce_threads(
      range, state, threadIdx.x == 0, [] { named_barrier_sync(kProducerBarrier, kProducerThreads); });
  if (!can_multiply || !image_range.is_finite()) {
    // naive_conv computes the image once, in the pass of the weights' first binade window.
    if (weight_window == 0) commit_slot(problem, progress, {image, top, Task::naive_conv});
    return {progress.slots, top};
  }
  if constexpr (Format::kIsScaled) {
    const int image_binade_windows = image_range.windows();
    for (int window = 0; window < image_binade_windows; ++window) {
      if (window > 0) acquire_slot(problem, progress);
      const int window_top = image_range.top() - window * kBinades;
      for (int chunk = 0; chunk < problem.chunks; ++chunk) {
        const Chunk<Element> source(problem, image, FilterTile(problem).first_channel, chunk);
        convert<Format, true>(problem, chunk, source.channels, problem.x + source.begin,
                              shared_memory_at(problem.shared.pixel_offsets), BinadeWindow(window_top),
                              slot_at(problem, progress.slots.stage()), range);
      }
      fence_proxy_async();
      named_barrier_sync(kProducerBarrier, kProducerThreads);
      commit_slot(problem, progress,
                  {image, window_top, weight_window + window > 0 ? Task::add : Task::store});
    }
    top = image_range.top();
  }
  return {progress.slots, top};
}

// Producer loop: loads and converts the block's images.
template <typename Format, typename Element = typename Format::Element>
__device__ inline void produce_images(const Arguments<Element>& problem, int weight_window, bool can_multiply,
                                      Progress& progress) {
  BlockState& state = block_state(problem);
  const int first_channel = FilterTile(problem).first_channel;
  const auto stage_at = [&](int stage) {
    return shared_memory_at(problem.shared.stages) + stage * problem.stage_bytes;
  };
  // Starts the block's next TMA load, if there is one.
  int load_image = blockIdx.x, load_chunk_index = 0;
  const auto start_load = [&](int stage) {
    if (threadIdx.x != 0 || load_image >= problem.batch) return;
    load_chunk(problem, Chunk<Element>(problem, load_image, first_channel, load_chunk_index), stage_at(stage),
               &state.stage_full[stage]);
    if (++load_chunk_index == problem.chunks) load_chunk_index = 0, load_image += gridDim.x;
  };
  for (int i = 0; i < problem.stages; ++i) start_load((progress.stages.stage + i) % problem.stages);
  int top = kFirstTop;
  for (int image = blockIdx.x; image < problem.batch; image += gridDim.x) {
    acquire_slot(problem, progress);
    ValueRange<Element> range;
    bool fits_scale = can_multiply;
    for (int chunk = 0; chunk < problem.chunks; ++chunk) {
      const Chunk<Element> source(problem, image, first_channel, chunk);
      mbarrier_wait(&state.stage_full[progress.stages.stage], progress.stages.phase);
      const Element* const from =
          reinterpret_cast<const Element*>(stage_at(progress.stages.stage)) + source.misalignment(problem);
      range = convert<Format, false>(problem, chunk, source.channels, from,
                                     shared_memory_at(problem.shared.pixel_offsets), BinadeWindow(top),
                                     slot_at(problem, progress.slots.stage()), range);
      fence_proxy_async();
      fits_scale =
          named_barrier_sync_all(kProducerBarrier, kProducerThreads, fits<Format>(range, top)) && fits_scale;
      start_load(progress.stages.stage);
      progress.stages.advance(problem.stages);
    }
    if (fits_scale) {
      commit_slot(problem, progress, {image, top, weight_window > 0 ? Task::add : Task::store});
    } else {
      const SlotAndTop next =
          convert_by_windows<Format>(problem, image, top, range, can_multiply, progress.slots, weight_window);
      progress.slots = next.slots, top = next.top;
    }
  }
  acquire_slot(problem, progress);
  commit_slot(problem, progress, {0, 0, Task::end});
}

// Issues all wgmmas of an output tile: accumulators = weights * image, where `image` begins at the tile's
// first position. Calls hand_over() before the last steps, when the other warpgroup should start.
template <typename Format, int kTiles, typename HandOver, typename Element = typename Format::Element>
__device__ inline void issue_wgmmas(const Arguments<Element>& problem, SmemDescriptor image,
                                    const RegisterWeights& register_weights, SmemDescriptor weights,
                                    HandOver hand_over, float (&accumulators)[kTiles][4]) {
  using Number = typename Format::Number;
  image = image.warp_uniform();
  wgmma_fence();
  const auto correct = [&] { scale_accumulators(accumulators, Format::kCorrectionScale); };
  for_each_term<Format, Format::kTerms>(correct, [&](int term) {
    const bool is_last = term == Format::kTerms - 1;
    const SmemDescriptor b = image.advanced(Format::pixel_part(term) * problem.part_vectors);
    int first = 0, staged = problem.k_steps - problem.register_steps;
    if (Format::weight_part(term) == 0) {
#pragma unroll
      for (int step = 0; step < kRegisterSteps; step += kUnrolledSteps) {
        if (step == 0 || step < problem.register_steps) {
          if (is_last && step == problem.handover_step) hand_over();
#pragma unroll
          for (int i = step; i < step + kUnrolledSteps; ++i) {
            const SmemDescriptor shifted = b.advanced(problem.step_offsets[i]);
            if (term == 0 && i == 0) {
              wgmma_overwrite<Number, kTiles>(accumulators, register_weights.fragments[i], shifted);
            } else {
              wgmma<Number, kTiles>(accumulators, register_weights.fragments[i], shifted);
            }
          }
        }
      }
      first = problem.register_steps, staged = 0;
    }
#pragma unroll 1
    for (int step = first; step < problem.k_steps; step += kUnrolledSteps) {
      if (is_last && step == problem.handover_step) hand_over();
#pragma unroll
      for (int i = 0; i < kUnrolledSteps; ++i) {
        wgmma<Number, kTiles>(accumulators, weights.advanced((staged + step - first + i) * kStepUnits),
                              b.advanced(problem.step_offsets[step + i]));
      }
    }
  });
}

// Consumer loop of a warpgroup: issues the wgmmas of converted images and writes their results to shared
// memory. Two warpgroups alternate at the tensor cores, so that one writes while the other multiplies.
template <typename Format, int kTiles, typename Element = typename Format::Element>
__device__ inline void consume_images(const Arguments<Element>& problem, const Weights<Format>& weights,
                                      Progress& progress) {
  BlockState& state = block_state(problem);
  const FilterTile filter_tile(problem);
  const int warpgroup = warpgroup_index() - 1;
  unsigned* const shared_weight_words = shared_memory_at(problem.shared.weights());
  const RowWeightConverter<Format> weight_converter(problem, weights);
  const RegisterWeights register_weights(
      problem, weight_converter, reinterpret_cast<unsigned*>(shared_memory_at(problem.shared.results)));
  const int first_part_steps = problem.k_steps - problem.register_steps;
  weight_converter.stage(problem, 0, problem.register_steps, first_part_steps, shared_weight_words);
  if constexpr (Format::kParts > 1) {
    weight_converter.stage(problem, 1, 0, problem.k_steps,
                           shared_weight_words + first_part_steps * kStepUnits * 4);
  }
  fence_proxy_async();
  named_barrier_sync(kConsumerBarrier, kConsumerThreads);
  const SmemDescriptor shared_weights = SmemDescriptor::at(shared_weight_words, kWgmmaM).warp_uniform();

  RowScale* const scales = shared_memory_at(problem.shared.row_scales) + warpgroup * kWgmmaM;
  int scales_top = 0;
  bool has_scales = false, scales_have_bias = false, needs_second_factor = false;
  for (;;) {
    const int slot = progress.slots.stage();
    mbarrier_wait(&state.slot_full[slot], progress.slots.phase());
    const SlotState slot_state = state.slots[slot];
    progress.slots.advance();
    if (slot_state.task == Task::naive_conv || slot_state.task == Task::end) {
      mbarrier_arrive(&state.slot_empty[slot]);
      if (slot_state.task == Task::end) return;
      compute_naive_conv(problem, slot_state.image, filter_tile.first_filter, filter_tile.filters);
      continue;
    }
    if (!has_scales || scales_top != slot_state.top || scales_have_bias != (slot_state.task == Task::store)) {
      has_scales = true, scales_top = slot_state.top, scales_have_bias = slot_state.task == Task::store;
      sync_warpgroup(warpgroup_index());
      const bool is_near = find_row_scales<Format>(problem, shared_memory_at(problem.shared.filter_tops),
                                                   weights.window, slot_state.top, filter_tile.first_filter,
                                                   filter_tile.filters, scales_have_bias, scales);
      needs_second_factor = !sync_warpgroup_all(warpgroup_index(), is_near);
    }
    const SmemDescriptor image = SmemDescriptor::at(slot_at(problem, slot), 0);
    const int buffer = progress.buffer(problem.buffers);
    const unsigned buffer_phase = progress.buffer_phase(problem.buffers);
    const unsigned first_tile = static_cast<unsigned>(progress.images_stored) * problem.output_tiles;
    ++progress.images_stored;
    const int misalignment = results_misalignment(problem, slot_state.image, filter_tile.first_filter);
    const SharedAddress results = shared_address(shared_memory_at(problem.shared.results)) +
                                  buffer * problem.buffer_bytes +
                                  misalignment * static_cast<int>(sizeof(Element));
    const bool writes_pairs = problem.writes_pairs && misalignment % 2 == 0;
    // Neighbouring threads use neighbouring banks.
    const SharedAddress discard =
        shared_address(shared_memory_at(problem.shared.discard)) +
        (threadIdx.x - (kThreads - kConsumerThreads)) * (writes_pairs ? kDiscardBytes : kDiscardBytes / 2);
    int tile = static_cast<int>((first_tile + warpgroup) % kConsumerWarpgroups);
    if (tile >= problem.output_tiles) mbarrier_arrive(&state.slot_empty[slot]);
    bool buffer_is_empty = false;
    for (; tile < problem.output_tiles; tile += kConsumerWarpgroups) {
      float accumulators[kTiles][4];
      // A warpgroup has every second tile, so the turn's phase is half the tile's number, modulo two.
      mbarrier_wait(&state.mma_turn[warpgroup],
                    (first_tile + tile) / kConsumerWarpgroups & 1 ^ (warpgroup == 0 ? 1 : 0));
      issue_wgmmas<Format, kTiles>(
          problem, image.advanced(tile * kTiles * kTileColumns), register_weights, shared_weights,
          [&] { mbarrier_arrive(&state.mma_turn[1 - warpgroup]); }, accumulators);
      // With two buffers no filter is double-buffered on its own, and both offsets are equal.
      ResultWriter<kTiles> writer(
          scales, shared_memory_at(problem.shared.output_offsets) + tile * kOutputsPerTile, buffer_phase);
      wgmma_commit_and_wait(accumulators);
      if (tile + kConsumerWarpgroups >= problem.output_tiles) mbarrier_arrive(&state.slot_empty[slot]);
      if (!buffer_is_empty) mbarrier_wait(&state.results_empty[buffer], buffer_phase ^ 1);
      buffer_is_empty = true;
      writer.template write<Format>(results, discard, needs_second_factor, tile >= problem.first_ragged_tile,
                                    writes_pairs, accumulators);
    }
    if (!buffer_is_empty) mbarrier_wait(&state.results_empty[buffer], buffer_phase ^ 1);
    fence_proxy_async();
    mbarrier_arrive(&state.results_full[buffer]);
  }
}

// Chooses how the results of a further binade window are added to y. A TMA reduction may flush subnormal
// numbers to zero, so it is used only if neither products nor bias can be subnormal. Products lie up to 29
// binades below the uppermost of either factor, and have bits as far below. `top` is the uppermost binade of
// the input's binade window.
template <typename Element>
__device__ inline StoreMode store_mode_for_add(const Arguments<Element>& problem,
                                               const FilterTile& filter_tile, int top, int weight_window) {
  constexpr int kMinExponent = -126 + 2 * kBinades + 24;
  const int* const tops = shared_memory_at(problem.shared.filter_tops);
  for (int filter = 0; filter < filter_tile.filters; ++filter) {
    const unsigned bias =
        problem.b == nullptr
            ? 0u
            : absolute_bits(static_cast<float>(problem.b[filter_tile.first_filter + filter]));
    if (top + tops[filter] - weight_window * kBinades < kMinExponent ||
        (bias != 0u && bias < bits_of_power(-126 + 24))) {
      return StoreMode::add_exactly;
    }
  }
  return StoreMode::add;
}

// Store loop of one warp: stores the results of images.
template <typename Element>
__device__ inline void store_images(const Arguments<Element>& problem, int weight_window,
                                    Progress& progress) {
  BlockState& state = block_state(problem);
  const FilterTile filter_tile(problem);
  for (;;) {
    const int slot = progress.slots.stage();
    mbarrier_wait(&state.slot_full[slot], progress.slots.phase());
    const SlotState slot_state = state.slots[slot];
    mbarrier_arrive(&state.slot_empty[slot]);
    progress.slots.advance();
    if (slot_state.task == Task::end) break;
    if (slot_state.task == Task::naive_conv) continue;
    const int buffer = progress.buffer(problem.buffers);
    const unsigned buffer_phase = progress.buffer_phase(problem.buffers);
    mbarrier_wait(&state.results_full[buffer], buffer_phase);
    ++progress.images_stored;
    StoreMode store_mode = StoreMode::store;
    if (slot_state.task == Task::add) {
      store_mode = store_mode_for_add(problem, filter_tile, slot_state.top, weight_window);
      tma_store_wait_group();
      __syncwarp();
    }
    const unsigned char* const results =
        shared_memory_at(problem.shared.results) + buffer * problem.buffer_bytes;
    const int single_buffered = max(0, filter_tile.filters - problem.double_buffered_filters);
    store_results(problem, slot_state.image, filter_tile.first_filter, 0, single_buffered, store_mode,
                  results);
    tma_store_wait_group_read();
    __syncwarp();  // keeps other lanes from polling for the next image while lane 0 waits
    mbarrier_arrive(&state.results_empty[buffer]);
    // The next image writes these filters' results to their other buffer. The image after it writes here only
    // after `results_empty` of the next image. This warp arrives there after all of its TMA stores, including
    // these, have read shared memory.
    if (single_buffered < filter_tile.filters) {
      store_results(problem, slot_state.image, filter_tile.first_filter, single_buffered, filter_tile.filters,
                    store_mode, results + kDoubleBufferGap + buffer_phase * problem.second_buffer_offset);
    }
  }
  tma_store_wait_group();
}

// Persistent blocks, each of which computes whole images. grid.y is the groups times their blocks of filters.
template <typename Format, int kTiles>
__global__ void __launch_bounds__(kThreads, 1)
    kernel(const __grid_constant__ Arguments<typename Format::Element> problem) {
#if defined(__CUDA_ARCH__) && !defined(__CUDA_ARCH_FEAT_SM90_ALL)
#error "implicit_gemm has code for compute capability 9.0 alone: compile it for sm_90a"
#else
  using Element = typename Format::Element;
  griddepcontrol_wait();
  BlockState& state = block_state(problem);
  const FilterTile filter_tile(problem);
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);

  find_pixel_offsets(problem, shared_memory_at(problem.shared.pixel_offsets));
  find_output_offsets<kTiles * kTileColumns>(problem, shared_memory_at(problem.shared.output_offsets));
  // Vectors between rows stay zeros.
  for (int i = threadIdx.x; i < kSlots * problem.slot_vectors; i += kThreads) {
    reinterpret_cast<uint4*>(shared_memory_at(problem.shared.slots))[i] = make_uint4(0u, 0u, 0u, 0u);
  }
  if (threadIdx.x == 0) {
    state.max_bits = 0u, state.min_bits_less_one = ~0u, state.weight_windows = 1u;
    for (int i = 0; i < problem.stages; ++i) tma_mbarrier_init(&state.stage_full[i]);
    for (int i = 0; i < kSlots; ++i) {
      mbarrier_init(&state.slot_full[i], kProducerThreads);
      mbarrier_init(&state.slot_empty[i], kConsumerThreads + kStoreThreads);
    }
    for (int i = 0; i < problem.buffers; ++i) {
      mbarrier_init(&state.results_full[i], kConsumerThreads);
      mbarrier_init(&state.results_empty[i], kStoreThreads);
    }
    for (int i = 0; i < kConsumerWarpgroups; ++i)
      mbarrier_init(&state.mma_turn[i], kConsumerThreads / kConsumerWarpgroups);
  }
  fence_proxy_async();

  // Weights are read from shared memory if they fit, because each is read several times.
  const int size = problem.channels * problem.filter_height * problem.filter_width;
  const int weights = filter_tile.filters * size;
  const Element* const all_weights = problem.w + static_cast<long long>(filter_tile.first_filter) * size;
  Element* const weight_buffer =
      reinterpret_cast<Element*>(shared_memory_at(problem.shared.results) + kStagedBytes);
  const bool weights_fit =
      kStagedBytes + weights * static_cast<int>(sizeof(Element)) <= problem.results_bytes;
  int* const tops = shared_memory_at(problem.shared.filter_tops);
  Progress progress;
  int weight_binade_windows = 1;
  for (int window = 0; window < weight_binade_windows; ++window) {
    if (weights_fit) copy_weights(all_weights, weights, weight_buffer);
    __syncthreads();
    const Element* const from = weights_fit ? weight_buffer : all_weights;
    if (window == 0) {
      measure_filters<Format>([&](int filter) { return from + static_cast<long long>(filter) * size; },
                              filter_tile.filters, size, tops, &state.weight_windows);
      __syncthreads();
    }
    const bool can_multiply = state.weight_windows != ~0u;
    weight_binade_windows = can_multiply ? static_cast<int>(state.weight_windows) : 1;
    if (warp < 4) {
      setmaxnreg_dec<kProducerRegisters>();
      if (warp < kProducerThreads / 32) {
        produce_images<Format>(problem, window, can_multiply, progress);
      } else {
        store_images(problem, window, progress);
      }
      sync_warpgroup(0);  // all four warps, before their registers change again
      setmaxnreg_inc<kBaseRegisters>();
    } else {
      setmaxnreg_inc<kConsumerRegisters>();
      consume_images<Format, kTiles>(problem, Weights<Format>{from, tops, filter_tile.filters, window},
                                     progress);
      setmaxnreg_dec<kBaseRegisters>();
    }
    __syncthreads();
  }
#endif
}

}  // namespace convswap::implicit_gemm
