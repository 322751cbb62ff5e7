#pragma once

// The kernel of row_windows; row_windows.cc describes the algorithm and fills the arguments.

#include "cuda/epilogue/activations.cuh"
#include "cuda/primitives/dependent_launch.cuh"
#include "cuda/primitives/global_memory.cuh"
#include "cuda/primitives/mbarrier.cuh"
#include "cuda/primitives/naive_conv.cuh"
#include "cuda/primitives/pipeline_state.cuh"
#include "cuda/primitives/registers.cuh"
#include "cuda/primitives/tma.cuh"
#include "cuda/primitives/warpgroup.cuh"
#include "cuda/row_windows/operands.cuh"

namespace convswap::row_windows {

// Transposes a 4x4 matrix of words among four adjacent lanes: word j of lane i becomes word i of lane j. All
// lanes of the warp must call it.
__device__ inline void transpose_four_lanes(unsigned (&words)[4]) {
  const bool is_odd = threadIdx.x % 2 == 1, is_upper = threadIdx.x % 4 >= 2;
#pragma unroll
  for (int j = 0; j < 4; j += 2) {
    const unsigned received = __shfl_xor_sync(0xffffffffu, is_odd ? words[j] : words[j + 1], 1);
    words[j] = is_odd ? received : words[j];
    words[j + 1] = is_odd ? words[j + 1] : received;
  }
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const unsigned received = __shfl_xor_sync(0xffffffffu, is_upper ? words[j] : words[j + 2], 2);
    words[j] = is_upper ? received : words[j];
    words[j + 2] = is_upper ? words[j + 2] : received;
  }
}

// Computes the output offset of each column of a band; called by the consumers. A column that is a multiple
// of the pitch begins a group of output rows. Columns past the end of an output row have no output.
template <typename Element>
__device__ inline void find_outputs(const Arguments<Element>& problem, int thread, int* outputs) {
  for (int i = thread; i < problem.column_chunks * kColumns; i += kConsumerThreads) {
    const int group = i / problem.pitch;
    const int column = i - group * problem.pitch;
    outputs[i] = group < problem.groups && column < problem.output_width
                     ? group * problem.folds * problem.output_width + column
                     : -1;
  }
}

// Recomputes an output naively, because wgmma also multiplies infinities by the zeros that pad the depth.
template <typename Element>
__device__ __noinline__ void store_naive_output(const Arguments<Element>& problem, int image, int filter,
                                                int row, int column, long long index) {
  problem.y[index] = static_cast<Element>(
      naive_conv_value<Element, float>(problem, problem.naive_conv, image, filter, 0, row, column));
}

// Epilogue of a thread's accumulators: two rows, and two adjacent columns of every eight.
template <typename Element>
class OutputWriter {
 public:
  __device__ OutputWriter(const Arguments<Element>& problem, const BlockFilters& block, const float* bias)
      : problem_(problem), block_(block) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const auto [fold, filter] = row_of(i);
      const bool in_bounds = fold < problem.folds && filter < block.filters;
      rows_[i] = in_bounds ? problem.output_height - fold : 0;
      bias_[i] = bias[in_bounds ? filter : 0];
      to_[i] = global_address(
          problem.y + (static_cast<long long>(block.first_filter + filter) * problem.output_height + fold) *
                          problem.output_width);
    }
  }

  // Selects the next band.
  __device__ void select(const Band& band) {
    const long long before = first_output_of(band_);
    band_ = band;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      to_[i] += (first_output_of(band) - before) * static_cast<int>(sizeof(Element));
      left_[i] = (rows_[i] - band.first_row) * problem_.output_width;
    }
  }

  // Initialises the accumulators with the bias, so the tensor core's truncating additions apply to the bias
  // too.
  __device__ void begin(float (&accumulators)[kTiles][4]) const {
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) accumulators[t][i] = bias_[i / 2];
    }
  }

  // `outputs` points to the output offset of the first column.
  __device__ void store(float (&accumulators)[kTiles][4], const int* outputs) const {
    const int* const lane_outputs = outputs + static_cast<int>(threadIdx.x) % 4 * 2;
    const unsigned long long undefined = not_finite(accumulators);
    if (problem_.epilogue.epilogue.activation != Activation::none) {
      dispatch_activation(problem_.epilogue, [&](auto finish) {
#pragma unroll
        for (int t = 0; t < kTiles; ++t) finish(accumulators[t]);
      });
    }
    if (problem_.outputs_per_store == 8) {
      if constexpr (sizeof(Element) == 2) store_eights(accumulators, lane_outputs);
    } else if (problem_.outputs_per_store == 4) {
      store_fours(accumulators, lane_outputs);
    } else if (problem_.outputs_per_store == 2) {
      store_pairs(accumulators, lane_outputs);
    } else {
      store_each(accumulators, lane_outputs);
    }
    // Orders the stores of naively recomputed outputs after the vector stores of adjacent lanes, which write
    // the same outputs.
    __syncwarp();
    if (undefined != 0) store_naive_outputs(undefined, lane_outputs);
  }

 private:
  using Of = WgmmaOperands<Element>;

  // Output row and filter of the thread's i-th accumulator row.
  struct Row {
    int fold, filter;
  };
  __device__ Row row_of(int i) const {
    const int thread = static_cast<int>(threadIdx.x) % kWarpgroup;
    const int row = thread / 32 * 16 + thread % 32 / 4 + 8 * i, fold = row / problem_.block_filters;
    return {fold, row - fold * problem_.block_filters};
  }
  // Index of a band's first output, for filter 0.
  __device__ long long first_output_of(const Band& band) const {
    return (static_cast<long long>(band.image) * problem_.out_channels * problem_.output_height +
            band.first_row) *
           problem_.output_width;
  }

  __device__ bool is_output(int i, int output) const {
    return output >= 0 && output < (i == 0 ? left_[0] : left_[1]);
  }
  __device__ unsigned long long address_of(int i, int output) const {
    return (i == 0 ? to_[0] : to_[1]) + static_cast<long long>(output) * static_cast<int>(sizeof(Element));
  }
  // Index in y of an output.
  __device__ long long output_index_of(int i, int output) const {
    return static_cast<long long>(address_of(i, output) - global_address(problem_.y)) /
           static_cast<int>(sizeof(Element));
  }

  // Four lanes hold eight columns of a row per tile. After a transpose, each lane stores one of four tiles.
  __device__ void store_eights(const float (&accumulators)[kTiles][4], const int* lane_outputs) const {
#pragma unroll
    for (int t = 0; t < kTiles; t += 4) {
      const int output = first_of_eight(t, lane_outputs);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        unsigned pairs[4];
#pragma unroll
        for (int j = 0; j < 4; ++j)
          pairs[j] = Of::pair_of(accumulators[t + j][2 * i], accumulators[t + j][2 * i + 1]);
        transpose_four_lanes(pairs);
        store_global_if(is_output(i, output), address_of(i, output),
                        make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]));
      }
    }
  }
  static __device__ int first_of_eight(int tile, const int* lane_outputs) {
    const int lane = static_cast<int>(threadIdx.x) % 4;
    return lane_outputs[(tile + lane) * kTileColumns - 2 * lane];
  }

  // Adjacent lanes hold adjacent columns. Of every two tiles, the even lane stores four columns of the first
  // and the odd lane four columns of the second.
  __device__ void store_fours(const float (&accumulators)[kTiles][4], const int* lane_outputs) const {
    const bool is_odd = threadIdx.x % 2 == 1;
#pragma unroll
    for (int t = 0; t < kTiles; t += 2) {
      const int output = lane_outputs[is_odd ? (t + 1) * kTileColumns - 2 : t * kTileColumns];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const auto first = Of::pair_of(accumulators[t][2 * i], accumulators[t][2 * i + 1]);
        const auto second = Of::pair_of(accumulators[t + 1][2 * i], accumulators[t + 1][2 * i + 1]);
        const auto received = Of::beside(is_odd ? first : second);
        store_global_if(is_output(i, output), address_of(i, output),
                        Of::four_of(is_odd ? received : first, is_odd ? second : received));
      }
    }
  }

  __device__ void store_pairs(const float (&accumulators)[kTiles][4], const int* lane_outputs) const {
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      const int output = lane_outputs[t * kTileColumns];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        store_global_if(is_output(i, output), address_of(i, output),
                        Of::pair_of(accumulators[t][2 * i], accumulators[t][2 * i + 1]));
      }
    }
  }

  __device__ void store_each(const float (&accumulators)[kTiles][4], const int* lane_outputs) const {
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int output = lane_outputs[t * kTileColumns + i % 2];
        store_global_if(is_output(i / 2, output), address_of(i / 2, output), Of::one_of(accumulators[t][i]));
      }
    }
  }

  // Bit mask of the accumulators that are not finite.
  static __device__ unsigned long long not_finite(const float (&accumulators)[kTiles][4]) {
    float non_finite[4] = {};  // finite accumulators add zero
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) non_finite[i] = fmaf(accumulators[t][i], 0.0f, non_finite[i]);
    }
    unsigned long long found = 0;
    if (non_finite[0] + non_finite[1] + (non_finite[2] + non_finite[3]) == 0.0f) return found;
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        found |= static_cast<unsigned long long>(!(fabsf(accumulators[t][i]) < infinity())) << (t * 4 + i);
      }
    }
    return found;
  }

  __device__ void store_naive_outputs(unsigned long long which, const int* lane_outputs) const {
#pragma unroll 1
    for (int index = 0; index < kTiles * 4; ++index) {
      const int i = index / 2 % 2, output = lane_outputs[index / 4 * kTileColumns + index % 2];
      if ((which >> index & 1) == 0 || !is_output(i, output)) continue;
      const int row_offset = output / problem_.output_width;
      const auto [fold, filter] = row_of(i);
      store_naive_output(problem_, band_.image, block_.first_filter + filter,
                         band_.first_row + fold + row_offset, output - row_offset * problem_.output_width,
                         output_index_of(i, output));
    }
  }

  const Arguments<Element>& problem_;
  const BlockFilters& block_;
  Band band_{0, 0};
  float bias_[2];
  int rows_[2];               // output rows from the fold's first to the image's end; 0 without a filter
  int left_[2] = {};          // outputs from the band's first output on
  unsigned long long to_[2];  // address of that output
};

// Pointers into a block's shared memory.
template <typename Element>
struct SharedPointers {
  uint4 *weights, *stages;
  Segment* segments;
  int* outputs;
  float* bias;
  BlockState& state;
  int stage_windows;

  __device__ SharedPointers(const Arguments<Element>& problem, unsigned char* shared)
      : weights(reinterpret_cast<uint4*>(problem.shared.weights.in(shared))),
        stages(reinterpret_cast<uint4*>(problem.shared.stages.in(shared))),
        segments(problem.shared.segments.in(shared)),
        outputs(problem.shared.outputs.in(shared)),
        bias(problem.shared.bias.in(shared)),
        state(*problem.shared.state.in(shared)),
        stage_windows(problem.stage_windows) {}

  __device__ uint4* stage(int index) const { return stages + index * stage_windows; }
};

// Producer: stores the windows of the block's bands into pipeline stages. The next segments are loaded before
// the current ones are stored.
template <typename Segments, typename Element>
class Producer {
 public:
  __device__ Producer(const Arguments<Element>& problem, const SharedPointers<Element>& smem,
                      const BlockFilters& block)
      : problem_(problem),
        smem_(smem),
        reader_(problem, block, Segments::column_of(problem, static_cast<int>(threadIdx.x) % 32)),
        tile_(blockIdx.x) {}

  __device__ void run() {
    // Double buffer by name: a copy between registers would wait for the loads in flight.
    Segments even, odd;
    reader_.select(Band(problem_, tile_));
    even.load(reader_, smem_.segments + first_);
    while (tile_ < problem_.tiles) {
      store_and_load(even, odd);
      if (tile_ < problem_.tiles) store_and_load(odd, even);
    }
  }

 private:
  static_assert(kSegmentMultiple % (Segments::kBatch * kProducerWarps) == 0);

  __device__ void store_and_load(const Segments& current, Segments& next) {
    const bool begins = first_ == warp();
    first_ += Segments::kBatch * kProducerWarps;
    const bool ends = first_ >= problem_.segments;
    if (ends) {
      first_ = warp();
      tile_ += gridDim.x;
      if (tile_ < problem_.tiles) reader_.select(Band(problem_, tile_));
    }
    if (tile_ < problem_.tiles) next.load(reader_, smem_.segments + first_);
    if (begins) mbarrier_wait(&smem_.state.empty_barriers[pipeline_.stage()], pipeline_.phase() ^ 1);
    current.store(smem_.stage(pipeline_.stage()));
    if (ends) {
      fence_proxy_async();
      mbarrier_arrive(&smem_.state.full_barriers[pipeline_.stage()]);
      pipeline_.advance();
    }
  }
  static __device__ int warp() { return static_cast<int>(threadIdx.x) / 32; }

  const Arguments<Element>& problem_;
  const SharedPointers<Element>& smem_;
  SegmentReader<Element> reader_;
  PipelineState<kStages> pipeline_;
  int tile_, first_ = warp();  // of the last load
};

template <typename Element>
__device__ inline void produce(const Arguments<Element>& problem, const SharedPointers<Element>& smem,
                               const BlockFilters& block) {
  const auto run = [&]<Loading kLoading>() {
    Producer<SegmentsOfWords<Element, kLoading>, Element>(problem, smem, block).run();
  };
  switch (problem.loading) {
    case Loading::elements:
      Producer<SegmentsOfElements<Element>, Element>(problem, smem, block).run();
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

// Consumer: multiplies the windows of the block's bands by the weights and stores the outputs. Warpgroups
// take column chunks of a band in turns.
template <typename Element>
__device__ inline void consume(const Arguments<Element>& problem, const SharedPointers<Element>& smem,
                               const BlockFilters& block) {
  const int warpgroup = warpgroup_index() - kProducerThreads / kWarpgroup;
  const SmemDescriptor all_weights = SmemDescriptor::at(smem.weights, kRows).warp_uniform();
  OutputWriter<Element> results(problem, block, smem.bias);
  PipelineState<kStages> pipeline;
  for (int tile = blockIdx.x; tile < problem.tiles; tile += gridDim.x, pipeline.advance()) {
    results.select(Band(problem, tile));
    mbarrier_wait(&smem.state.full_barriers[pipeline.stage()], pipeline.phase());
    const SmemDescriptor windows = SmemDescriptor::at(smem.stage(pipeline.stage()), 0).warp_uniform();
    // Round robin across bands, because a band's chunks may not divide evenly among the warpgroups.
    int chunk = (pipeline.uses * problem.column_chunks + warpgroup) % kConsumerWarpgroups;
    if (chunk >= problem.column_chunks) mbarrier_arrive(&smem.state.empty_barriers[pipeline.stage()]);
    for (; chunk < problem.column_chunks; chunk += kConsumerWarpgroups) {
      float accumulators[kTiles][4];
      results.begin(accumulators);
      SmemDescriptor weights = all_weights;
      const SmemDescriptor columns = windows.advanced(chunk * kColumns);
      wgmma_fence(accumulators);
#pragma unroll 1
      for (int step = 0; step < problem.steps; ++step) {
        wgmma<typename WgmmaOperands<Element>::Product, kTiles>(accumulators, weights,
                                                                columns.advanced(problem.step_offsets[step]));
        weights = weights.advanced(kWindowsPerStep * kRows);
      }
      wgmma_commit_and_wait(accumulators);
      if (chunk + kConsumerWarpgroups >= problem.column_chunks) {
        mbarrier_arrive(&smem.state.empty_barriers[pipeline.stage()]);
      }
      results.store(accumulators, smem.outputs + chunk * kColumns);
    }
  }
}

template <typename Element>
__global__ void __launch_bounds__(kThreads, 1) kernel(const __grid_constant__ Arguments<Element> problem) {
#if defined(__CUDA_ARCH__) && !defined(__CUDA_ARCH_FEAT_SM90_ALL)
#error "row_windows has code for compute capability 9.0 alone: compile it for sm_90a"
#else
  extern __shared__ __align__(128) unsigned char shared[];
  const SharedPointers<Element> smem(problem, shared);
  const BlockFilters block(problem);
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      mbarrier_init(&smem.state.full_barriers[i], kProducerThreads);
      mbarrier_init(&smem.state.empty_barriers[i], kConsumerThreads);
    }
  }
  // Zeros the positions without windows: wgmma reads them for columns without outputs.
  for (int i = static_cast<int>(threadIdx.x); i < kStages * problem.stage_windows; i += kThreads) {
    smem.stages[i] = make_uint4(0u, 0u, 0u, 0u);
  }
  if (threadIdx.x < kProducerThreads) find_segments(problem, smem.segments);
  __syncthreads();
  if (warpgroup_index() < kProducerThreads / kWarpgroup) {
    setmaxnreg_dec<kProducerRegisters>();
    produce(problem, smem, block);
  } else {
    setmaxnreg_inc<kConsumerRegisters>();
    const int thread = static_cast<int>(threadIdx.x) - kProducerThreads;
    find_outputs(problem, thread, smem.outputs);
    store_weights(problem, block, thread, smem.weights, smem.bias);
    fence_proxy_async();
    named_barrier_sync(kConsumerBarrier, kConsumerThreads);
    consume(problem, smem, block);
  }
#endif
}

}  // namespace convswap::row_windows
