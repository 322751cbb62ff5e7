#pragma once

// The kernel of the algorithm `row_windows`; row_windows.cc tells the idea and fills the arguments.

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

// Of four neighbouring lanes with four words each: word j of lane i becomes word i of lane j. By all lanes of
// a warp; twice it changes nothing.
__device__ inline void transpose_among_four_lanes(unsigned (&words)[4]) {
  const bool is_odd = threadIdx.x % 2 == 1, is_upper = threadIdx.x % 4 >= 2;
#pragma unroll
  for (int j = 0; j < 4; j += 2) {
    const unsigned given = __shfl_xor_sync(0xffffffffu, is_odd ? words[j] : words[j + 1], 1);
    words[j] = is_odd ? given : words[j];
    words[j + 1] = is_odd ? words[j + 1] : given;
  }
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const unsigned given = __shfl_xor_sync(0xffffffffu, is_upper ? words[j] : words[j + 2], 2);
    words[j] = is_upper ? given : words[j];
    words[j + 2] = is_upper ? words[j + 2] : given;
  }
}

// Finds the outputs of a band's columns, by the consumers. A column that is a multiple of the pitch begins a
// group of output rows; behind the last column of a row are places that no output has.
template <typename Element>
__device__ inline void find_outputs(const Arguments<Element>& problem, int thread, int* outputs) {
  for (int i = thread; i < problem.column_chunks * kColumns; i += kConsumers) {
    const int group = i / problem.pitch;
    const int column = i - group * problem.pitch;
    outputs[i] = group < problem.groups && column < problem.output_width
                     ? group * problem.folds * problem.output_width + column
                     : -1;
  }
}

// An output as the definition says: an infinity is multiplied with the zeros that fill the depth, too.
template <typename Element>
__device__ __noinline__ void store_as_defined(const Arguments<Element>& problem, int image, int filter,
                                              int row, int column, long long at) {
  problem.y[at] = static_cast<Element>(
      naive_conv_value<Element, float>(problem, problem.definition, image, filter, 0, row, column));
}

// What a thread has of the products of all bands: of two rows, of every eight columns two neighbours.
template <typename Element>
class Results {
 public:
  __device__ Results(const Arguments<Element>& problem, const Share& share, const float* bias)
      : problem_(problem), share_(share) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const auto [fold, filter] = row_of(i);
      const bool exists = fold < problem.folds && filter < share.filters;
      rows_[i] = exists ? problem.output_height - fold : 0;
      bias_[i] = bias[exists ? filter : 0];
      to_[i] = global_address(
          problem.y + (static_cast<long long>(share.first_filter + filter) * problem.output_height + fold) *
                          problem.output_width);
    }
  }

  // Goes on to the next band.
  __device__ void take(const Band& band) {
    const long long before = first_of(band_);
    band_ = band;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      to_[i] += (first_of(band) - before) * static_cast<int>(sizeof(Element));
      left_[i] = (rows_[i] - band.first_row) * problem_.output_width;
    }
  }

  // Sums begin with the bias, which so meets the tensor core's truncated additions.
  __device__ void begin(float (&accumulators)[kTiles][4]) const {
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) accumulators[t][i] = bias_[i / 2];
    }
  }

  // `outputs`: of the first column.
  __device__ void store(float (&accumulators)[kTiles][4], const int* outputs) const {
    const int* const own = outputs + static_cast<int>(threadIdx.x) % 4 * 2;
    const unsigned long long undefined = not_finite(accumulators);
    if (problem_.following.epilogue.activation != Activation::none) {
      finish_many(problem_.following, [&](auto finish) {
#pragma unroll
        for (int t = 0; t < kTiles; ++t) finish(accumulators[t]);
      });
    }
    if (problem_.stored_together == 8) {
      if constexpr (sizeof(Element) == 2) store_eights(accumulators, own);
    } else if (problem_.stored_together == 4) {
      store_fours(accumulators, own);
    } else if (problem_.stored_together == 2) {
      store_pairs(accumulators, own);
    } else {
      store_each(accumulators, own);
    }
    // Behind the lane beside this one, which may have stored it.
    __syncwarp();
    if (undefined != 0) store_again(undefined, own);
  }

 private:
  using Of = Numbers<Element>;

  // The output row and the filter of a product's row that the thread has.
  struct Row {
    int fold, filter;
  };
  __device__ Row row_of(int i) const {
    const int thread = static_cast<int>(threadIdx.x) % kWarpgroup;
    const int row = thread / 32 * 16 + thread % 32 / 4 + 8 * i, fold = row / problem_.block_filters;
    return {fold, row - fold * problem_.block_filters};
  }
  // A band's first output, of the first filter's.
  __device__ long long first_of(const Band& band) const {
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
  // Of all outputs.
  __device__ long long number_of(int i, int output) const {
    return static_cast<long long>(address_of(i, output) - global_address(problem_.y)) /
           static_cast<int>(sizeof(Element));
  }

  // Four lanes have a row's eight columns of each tile: of every four tiles each takes one.
  __device__ void store_eights(const float (&accumulators)[kTiles][4], const int* own) const {
#pragma unroll
    for (int t = 0; t < kTiles; t += 4) {
      const int output = first_of_eight(t, own);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        unsigned pairs[4];
#pragma unroll
        for (int j = 0; j < 4; ++j)
          pairs[j] = Of::pair_of(accumulators[t + j][2 * i], accumulators[t + j][2 * i + 1]);
        transpose_among_four_lanes(pairs);
        store_global_if(is_output(i, output), address_of(i, output),
                        make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]));
      }
    }
  }
  static __device__ int first_of_eight(int tile, const int* own) {
    const int lane = static_cast<int>(threadIdx.x) % 4;
    return own[(tile + lane) * kTileColumns - 2 * lane];
  }

  // Neighbouring lanes have neighbouring columns: of every two tiles the even lane takes the four of the
  // first, the other those of the second.
  __device__ void store_fours(const float (&accumulators)[kTiles][4], const int* own) const {
    const bool is_odd = threadIdx.x % 2 == 1;
#pragma unroll
    for (int t = 0; t < kTiles; t += 2) {
      const int output = own[is_odd ? (t + 1) * kTileColumns - 2 : t * kTileColumns];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const auto first = Of::pair_of(accumulators[t][2 * i], accumulators[t][2 * i + 1]);
        const auto second = Of::pair_of(accumulators[t + 1][2 * i], accumulators[t + 1][2 * i + 1]);
        const auto given = Of::beside(is_odd ? first : second);
        store_global_if(is_output(i, output), address_of(i, output),
                        Of::four_of(is_odd ? given : first, is_odd ? second : given));
      }
    }
  }

  __device__ void store_pairs(const float (&accumulators)[kTiles][4], const int* own) const {
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      const int output = own[t * kTileColumns];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        store_global_if(is_output(i, output), address_of(i, output),
                        Of::pair_of(accumulators[t][2 * i], accumulators[t][2 * i + 1]));
      }
    }
  }

  __device__ void store_each(const float (&accumulators)[kTiles][4], const int* own) const {
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int output = own[t * kTileColumns + i % 2];
        store_global_if(is_output(i / 2, output), address_of(i / 2, output), Of::one_of(accumulators[t][i]));
      }
    }
  }

  // A bit for each sum that is not finite.
  static __device__ unsigned long long not_finite(const float (&accumulators)[kTiles][4]) {
    float sick[4] = {};  // what is finite adds nothing
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sick[i] = fmaf(accumulators[t][i], 0.0f, sick[i]);
    }
    unsigned long long found = 0;
    if (sick[0] + sick[1] + (sick[2] + sick[3]) == 0.0f) return found;
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        found |= static_cast<unsigned long long>(!(fabsf(accumulators[t][i]) < infinity())) << (t * 4 + i);
      }
    }
    return found;
  }

  __device__ void store_again(unsigned long long which, const int* own) const {
#pragma unroll 1
    for (int number = 0; number < kTiles * 4; ++number) {
      const int i = number / 2 % 2, output = own[number / 4 * kTileColumns + number % 2];
      if ((which >> number & 1) == 0 || !is_output(i, output)) continue;
      const int down = output / problem_.output_width;
      const auto [fold, filter] = row_of(i);
      store_as_defined(problem_, band_.image, share_.first_filter + filter, band_.first_row + fold + down,
                       output - down * problem_.output_width, number_of(i, output));
    }
  }

  const Arguments<Element>& problem_;
  const Share& share_;
  Band band_{0, 0};
  float bias_[2];
  int rows_[2];  // of outputs, from the fold's first on to the image's end; none where the row has no filter
  int left_[2] = {};          // outputs from the row's first of the band on
  unsigned long long to_[2];  // that first output
};

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
    if (begins) mbarrier_wait(&parts_.state.windows_are_free[ring_.stage()], ring_.phase() ^ 1);
    there.put(parts_.slot(ring_.stage()));
    if (ends) {
      fence_proxy_async();
      mbarrier_arrive(&parts_.state.windows_are_there[ring_.stage()]);
      ring_.advance();
    }
  }
  static __device__ int warp() { return static_cast<int>(threadIdx.x) / 32; }

  const Arguments<Element>& problem_;
  const Parts<Element>& parts_;
  OwnNumbers<Element> own_;
  PipelineState<kSlots> ring_;
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
  const int warpgroup = warpgroup_index() - kProducers / kWarpgroup;
  const SmemDescriptor all_weights = SmemDescriptor::at(parts.weights, kRows).warp_uniform();
  Results<Element> results(problem, share, parts.bias);
  PipelineState<kSlots> ring;
  for (int tile = blockIdx.x; tile < problem.tiles; tile += gridDim.x, ring.advance()) {
    results.take(Band(problem, tile));
    mbarrier_wait(&parts.state.windows_are_there[ring.stage()], ring.phase());
    const SmemDescriptor windows = SmemDescriptor::at(parts.slot(ring.stage()), 0).warp_uniform();
    // In turns through all bands, of which each may have an odd number.
    int chunk = (ring.uses * problem.column_chunks + warpgroup) % kConsumerWarpgroups;
    if (chunk >= problem.column_chunks) mbarrier_arrive(&parts.state.windows_are_free[ring.stage()]);
    for (; chunk < problem.column_chunks; chunk += kConsumerWarpgroups) {
      float accumulators[kTiles][4];
      results.begin(accumulators);
      SmemDescriptor weights = all_weights;
      const SmemDescriptor columns = windows.advanced(chunk * kColumns);
      wgmma_fence(accumulators);
#pragma unroll 1
      for (int step = 0; step < problem.steps; ++step) {
        wgmma<typename Numbers<Element>::Product, kTiles>(accumulators, weights,
                                                          columns.advanced(problem.step_places[step]));
        weights = weights.advanced(kPlacesOfStep * kRows);
      }
      wgmma_commit_and_wait(accumulators);
      if (chunk + kConsumerWarpgroups >= problem.column_chunks) {
        mbarrier_arrive(&parts.state.windows_are_free[ring.stage()]);
      }
      results.store(accumulators, parts.outputs + chunk * kColumns);
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
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  if (threadIdx.x == 0) {
    for (int i = 0; i < kSlots; ++i) {
      mbarrier_init(&parts.state.windows_are_there[i], kProducers);
      mbarrier_init(&parts.state.windows_are_free[i], kConsumers);
    }
  }
  // Places that no band has windows for are read for columns that are none: they stay zeros.
  for (int i = static_cast<int>(threadIdx.x); i < kSlots * problem.slot_places; i += kThreads) {
    parts.slots[i] = make_uint4(0u, 0u, 0u, 0u);
  }
  if (threadIdx.x < kProducers) find_segments(problem, parts.segments);
  __syncthreads();
  if (warpgroup_index() < kProducers / kWarpgroup) {
    setmaxnreg_dec<kRegistersOfProducers>();
    produce(problem, parts, share);
  } else {
    setmaxnreg_inc<kRegistersOfConsumers>();
    const int thread = static_cast<int>(threadIdx.x) - kProducers;
    find_outputs(problem, thread, parts.outputs);
    put_weights(problem, share, thread, parts.weights, parts.bias);
    fence_proxy_async();
    named_barrier_sync(kConsumerBarrier, kConsumers);
    consume(problem, parts, share);
  }
#endif
}

}  // namespace convswap::row_windows
