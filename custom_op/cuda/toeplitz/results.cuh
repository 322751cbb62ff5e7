#pragma once

// Stores of a tile's results: from the accumulators to shared memory, in y's order, and from there to y.

#include "conv/host_device.h"
#include "cuda/primitives/nan_min_max.cuh"
#include "cuda/primitives/shared_memory.cuh"
#include "cuda/primitives/tensor_core_formats.cuh"
#include "cuda/primitives/tma.cuh"
#include "cuda/primitives/warpgroup.cuh"
#include "cuda/toeplitz/input.cuh"

namespace convswap::toeplitz {

// Results of a tile for some filters. Results that are contiguous in y are one segment: all filters of an
// image, a plane or a row.
template <typename Element>
struct Results {
  static constexpr int kAlignmentElements = kAlignment / sizeof(Element),
                       kLineElements = kCacheLine / sizeof(Element);
  Tile tile;
  int first_filter, filters;
  long long start;     // index of the first result in y, from the cache-line boundary before y
  Element* y_staging;  // the data for y, misaligned to a cache line as in y
  void* conv_output;   // the Conv output; float32 if separate, else y_staging

  template <bool kHasEpilogue>
  static __device__ Results of(const Arguments<Element>& problem, const Tile& tile, int first_filter,
                               int filters, unsigned char* warpgroup_shared) {
    Results results;
    results.tile = tile;
    results.first_filter = first_filter;
    results.filters = filters;
    results.start =
        ((tile.n * problem.out_channels + first_filter) * problem.y_height + tile.y_row) * problem.y_width +
        tile.first_column + problem.y_misalignment;
    const int misalignment = static_cast<int>(results.start) & (kLineElements - 1);
    results.y_staging =
        reinterpret_cast<Element*>(problem.shared.y_staging.in(warpgroup_shared)) + misalignment;
    results.conv_output = results.y_staging;
    if (kHasEpilogue && problem.has_separate_conv_output) {
      float* const separate = reinterpret_cast<float*>(problem.shared.conv_output.in(warpgroup_shared));
      results.conv_output = problem.post_pass == PostPass::full ? separate : separate + misalignment;
    }
    return results;
  }
};

// Scales of a thread's two matrix columns of an accumulator tile. Both belong to one filter and fold, or to
// two if a span is one output.
struct ColumnPairScales {
  FilterScale first, second;
  bool has_first, has_second;  // false for matrix columns beyond the last filter
  int first_fold, second_fold;

  template <typename Element>
  __device__ ColumnPairScales(const Arguments<Element>& problem, const Results<Element>& results,
                              const FilterScale* scales, int column, int size) {
    const int filters_times_folds = results.filters << problem.log2_folds;
    const int index = column >> problem.log2_outputs;
    const int step = problem.log2_outputs == 0 ? 1 : 0;
    first = scales[index];
    second = step == 0 ? first : scales[index + 1];
    if (step == 0) second.offset += size;
    has_first = index < filters_times_folds;
    has_second = index + step < filters_times_folds;
    first_fold = index & (problem.folds - 1);
    second_fold = (index + step) & (problem.folds - 1);
  }
};

// Scales of a thread's matrix columns, one for each accumulator tile, if a span has several outputs. The
// compiler moves no load past a store. With up to 6 accumulator tiles and no epilogue, all scales are
// therefore loaded before the first result is stored. Otherwise their registers cost more than the early
// loads save (benchmarks/toeplitz.md, versions 9, 11, 12 and 15), and each scale is loaded while the previous
// one is used.
template <int kAccumulatorTiles, bool kHasEpilogue>
struct AccumulatorTileScales {
  static constexpr bool kPrefetchesAll = kAccumulatorTiles <= 6 && !kHasEpilogue;
  FilterScale prefetched[kPrefetchesAll ? kAccumulatorTiles : 1];
  const FilterScale* all;  // of the filter pass
  int log2_outputs;

  template <typename Element>
  __device__ AccumulatorTileScales(const Arguments<Element>& problem, const FilterScale* scales)
      : all(scales), log2_outputs(problem.log2_outputs) {
#pragma unroll
    for (int t = 0; t < (kPrefetchesAll ? kAccumulatorTiles : 1); ++t) prefetched[t] = load(t);
  }
  // Calls use(t, scale) for every kStep-th accumulator tile.
  template <int kStep = 1, typename Use>
  __device__ void for_each_accumulator_tile(Use use) const {
    FilterScale next = prefetched[0];
#pragma unroll
    for (int t = 0; t < kAccumulatorTiles; t += kStep) {
      const FilterScale scale = next;
      if (t + kStep < kAccumulatorTiles)
        next = kPrefetchesAll ? prefetched[kPrefetchesAll ? t + kStep : 0] : load(t + kStep);
      use(t, scale);
    }
  }

 private:
  __device__ FilterScale load(int t) const {
    return all[(t * kAccumulatorTileColumns + 2 * (threadIdx.x % 4)) >> log2_outputs];
  }
};

// Way of writing the accumulators to shared memory. All modes but `any` require that every matrix column has
// a filter and that a span has several outputs. Pairs are stored only if both results are always in the tile
// and the store is aligned.
enum class StoreMode {
  pairs,         // one fold per filter; two neighbouring results per store
  paired_folds,  // several folds per filter; two neighbouring results per store
  singles,       // one fold per filter; one result per store
  single_folds,  // several folds per filter; one result per store
  any,           // a predicate for every condition of every result
};

// Store mode of a filter pass. Not used if the accumulators are pooled.
template <int kAccumulatorTiles, typename Element>
__device__ inline StoreMode store_mode_of(const Arguments<Element>& problem,
                                          const Results<Element>& results) {
  const bool is_full = results.filters << (problem.log2_outputs + problem.log2_folds) ==
                           kAccumulatorTiles * kAccumulatorTileColumns &&
                       problem.log2_outputs > 0;
  if (!is_full) return StoreMode::any;
  const bool is_paired =
      problem.writes_pairs && (shared_address(results.conv_output) & (2 * problem.result_bytes - 1)) == 0;
  if (problem.folds > 1) return is_paired ? StoreMode::paired_folds : StoreMode::single_folds;
  return is_paired ? StoreMode::pairs : StoreMode::singles;
}

// Result of an accumulator: scale, bias, and the epilogue's clamp.
template <bool kHasEpilogue, typename Element>
__device__ inline float result_of(const Arguments<Element>& problem, const FilterScale& scale, float sum) {
  const float result = sum * scale.factor + scale.bias;
  if constexpr (!kHasEpilogue) return result;
  return min_nan(max_nan(result, problem.min_result), problem.max_result);
}

// Stored: the type of results in shared memory.
template <typename Format, typename Stored>
__device__ inline void store_result(SharedAddress target, float result) {
  if constexpr (kAreSame<Stored, float>) {
    store_shared_at(target, __float_as_uint(result));
  } else {
    const float results[] = {result};
    store_shared_at(target, Format::pack(results));
  }
}

// Coordinates in the tile of a thread's accumulators, for i = 0 and 1: folded row, span, and output column of
// the first of a pair.
struct AccumulatorCoord {
  int row, span, column;

  template <typename Element>
  __device__ AccumulatorCoord(const Arguments<Element>& problem, int first, int i) {
    const int lane = threadIdx.x % 32;
    const int m = first + warpgroup_thread() / 32 * 16 + lane / 4 + 8 * i;
    row = problem.pitch.quotient(m);
    span = m - row * static_cast<int>(problem.pitch.divisor);
    column = (span << problem.log2_outputs) + (2 * (lane % 4) & ((1 << problem.log2_outputs) - 1));
  }
};

// Shared-memory addresses of a thread's results, for i = 0 and 1. rows_left and second_rows_left count the
// tile's rows from the result's row on, for the first and the second of a pair; only folds below that count
// are results. With a pool on the accumulators, a pair belongs to one pool window and gives one result.
struct StoreTargets {
  SharedAddress addresses[2];
  int rows_left[2], second_rows_left[2];

  // For kWgmmaM rows of the product from row `first` of an image.
  template <bool kHasEpilogue, typename Element>
  static __device__ StoreTargets of(const Arguments<Element>& problem, const Results<Element>& results,
                                    int image, int first) {
    const Tile& tile = results.tile;
    const bool pools = kHasEpilogue && problem.pools_accumulators;
    const int log2_folds = pools ? 0 : problem.log2_folds, log2_columns = pools ? 1 : 0;
    const int rows = pools ? tile.y_rows : tile.rows, columns = pools ? tile.y_columns : tile.columns;
    StoreTargets targets;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const AccumulatorCoord coord(problem, first, i);
      const int row = coord.row << log2_folds, column = coord.column >> log2_columns;
      targets.rows_left[i] = coord.span < problem.spans && column < columns ? rows - row : 0;
      targets.second_rows_left[i] = column + 1 < columns ? targets.rows_left[i] : 0;
      const int element = image * problem.conv_strides.image + row * problem.conv_strides.row + column;
      targets.addresses[i] = shared_address(results.conv_output) + element * problem.result_bytes;
    }
    return targets;
  }
};

// Addresses and scales of the results of kWgmmaM rows, computed while the wgmmas run.
template <int kAccumulatorTiles, bool kHasEpilogue>
struct StoreContext {
  StoreMode store_mode;
  StoreTargets targets;
  AccumulatorTileScales<kAccumulatorTiles, kHasEpilogue> scales;

  // For the rows from row `first` of an image. `scales`: of the filter pass.
  template <typename Element>
  __device__ StoreContext(const Arguments<Element>& problem, const Results<Element>& results,
                          StoreMode store_mode, int image, int first, const FilterScale* scales)
      : store_mode(store_mode),
        targets(StoreTargets::of<kHasEpilogue>(problem, results, image, first)),
        scales(problem, scales) {}
};

// Writes the accumulators of kWgmmaM rows of the product to shared memory.
template <typename Format, int kAccumulatorTiles, bool kHasEpilogue, StoreMode kStoreMode, typename Stored,
          typename Element = typename Format::Element>
__device__ inline void write_accumulators(const Arguments<Element>& problem, const Results<Element>& results,
                                          const StoreContext<kAccumulatorTiles, kHasEpilogue>& store_context,
                                          const float (&accumulators)[kAccumulatorTiles][4]) {
  constexpr int kSize = sizeof(Stored);
  const StoreTargets& targets = store_context.targets;
  const int pair = 2 * (threadIdx.x % 4);
  const auto store = [&](SharedAddress target, const FilterScale& scale, float sum) {
    store_result<Format, Stored>(target, result_of<kHasEpilogue>(problem, scale, sum));
  };
  if constexpr (kStoreMode == StoreMode::any) {
#pragma unroll
    for (int t = 0; t < kAccumulatorTiles; ++t) {
      const ColumnPairScales scale(problem, results, store_context.scales.all,
                                   t * kAccumulatorTileColumns + pair, kSize);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (scale.has_first && scale.first_fold < targets.rows_left[i]) {
          store(targets.addresses[i] + scale.first.offset, scale.first, accumulators[t][2 * i]);
        }
        if (scale.has_second && scale.second_fold < targets.rows_left[i] &&
            (targets.second_rows_left[i] > 0 || problem.log2_outputs == 0)) {
          store(targets.addresses[i] + scale.second.offset, scale.second, accumulators[t][2 * i + 1]);
        }
      }
    }
  } else {
    constexpr bool kAreFolds = kStoreMode == StoreMode::single_folds || kStoreMode == StoreMode::paired_folds;
    constexpr bool kArePairs = kStoreMode == StoreMode::pairs || kStoreMode == StoreMode::paired_folds;
    store_context.scales.for_each_accumulator_tile([&](int t, const FilterScale& scale) {
      const int filter_and_fold = (t * kAccumulatorTileColumns + pair) >> problem.log2_outputs;
      const int fold = kAreFolds ? filter_and_fold & (problem.folds - 1) : 0;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const SharedAddress target = targets.addresses[i] + scale.offset;
        if constexpr (kArePairs) {
          const float both[] = {result_of<kHasEpilogue>(problem, scale, accumulators[t][2 * i]),
                                result_of<kHasEpilogue>(problem, scale, accumulators[t][2 * i + 1])};
          if (fold < targets.rows_left[i]) {
            if constexpr (kAreSame<Stored, float>) {
              store_shared_at(target, make_uint2(__float_as_uint(both[0]), __float_as_uint(both[1])));
            } else {
              store_shared_at(target, Format::pack(both));
            }
          }
        } else {
          if (fold < targets.rows_left[i]) store(target, scale, accumulators[t][2 * i]);
          if (fold < targets.second_rows_left[i]) store(target + kSize, scale, accumulators[t][2 * i + 1]);
        }
      }
    });
  }
}

// Writes a 2 x 2 pool of the accumulators if two output rows are folded: a thread, or a thread and its
// partner, holds the four accumulators of a pool window and writes one result. Averages add results. Maxima
// compare accumulators, since no scale is negative and a clamp keeps the order.
template <typename Format, int kAccumulatorTiles, bool kAverages, typename Stored,
          typename Element = typename Format::Element>
__device__ inline void write_pooled(const Arguments<Element>& problem, const Results<Element>& results,
                                    const StoreContext<kAccumulatorTiles, true>& store_context,
                                    const float (&accumulators)[kAccumulatorTiles][4]) {
  const int pair = 2 * (threadIdx.x % 4);
  const StoreTargets& targets = store_context.targets;
  const auto both = [&](const FilterScale& scale, float a, float b) {
    return kAverages ? result_of<true>(problem, scale, a) + result_of<true>(problem, scale, b)
                     : max_nan(a, b);
  };
  const auto store = [&](SharedAddress target, const FilterScale& scale, float a, float b) {
    store_result<Format, Stored>(
        target + scale.offset, kAverages ? 0.25f * (a + b) : result_of<true>(problem, scale, max_nan(a, b)));
  };
  if (problem.log2_outputs == 3) {
    // An accumulator tile is one fold, so the same thread holds both rows of the pool window.
    store_context.scales.template for_each_accumulator_tile<2>([&](int t, const FilterScale& scale) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float upper = both(scale, accumulators[t][2 * i], accumulators[t][2 * i + 1]);
        const float lower = both(scale, accumulators[t + 1][2 * i], accumulators[t + 1][2 * i + 1]);
        if (targets.rows_left[i] > 0 && t / 2 < results.filters)
          store(targets.addresses[i], scale, upper, lower);
      }
    });
    return;
  }
  // A thread holds one output row of two pool windows (product rows m and m + 8); its partner holds the other
  // output row of both. The thread of the upper row finishes window m, the thread of the lower row window
  // m + 8, and they exchange the other halves.
  const int distance = 1 << (problem.log2_outputs - 1);
  const bool is_lower = (threadIdx.x & distance) != 0;
  const SharedAddress address = is_lower ? targets.addresses[1] : targets.addresses[0];
  const bool is_inside = (is_lower ? targets.rows_left[1] : targets.rows_left[0]) > 0;
  store_context.scales.for_each_accumulator_tile([&](int t, const FilterScale& scale) {
    const int filter_and_fold = (t * kAccumulatorTileColumns + pair) >> problem.log2_outputs;
    const float first_window_row = both(scale, accumulators[t][0], accumulators[t][1]);
    const float second_window_row = both(scale, accumulators[t][2], accumulators[t][3]);
    const float received = __shfl_xor_sync(~0u, is_lower ? first_window_row : second_window_row, distance);
    if (is_inside && filter_and_fold / 2 < results.filters) {
      store(address, scale, is_lower ? second_window_row : first_window_row, received);
    }
  });
}

// kIsRare: speed does not matter, so only StoreMode::any is compiled.
template <typename Format, int kAccumulatorTiles, bool kHasEpilogue, bool kIsRare, typename Stored,
          typename Element = typename Format::Element>
__device__ inline void write_results_as(const Arguments<Element>& problem, const Results<Element>& results,
                                        const StoreContext<kAccumulatorTiles, kHasEpilogue>& store_context,
                                        const float (&accumulators)[kAccumulatorTiles][4]) {
  if constexpr (kHasEpilogue) {
    if (problem.pools_accumulators) {
      if (problem.naive_conv.epilogue.pool.kind == PoolKind::average) {
        write_pooled<Format, kAccumulatorTiles, true, Stored>(problem, results, store_context, accumulators);
      } else {
        write_pooled<Format, kAccumulatorTiles, false, Stored>(problem, results, store_context, accumulators);
      }
      return;
    }
  }
  const auto write = [&](auto store_mode) {
    write_accumulators<Format, kAccumulatorTiles, kHasEpilogue, decltype(store_mode)::value, Stored>(
        problem, results, store_context, accumulators);
  };
  using enum StoreMode;
  if constexpr (kIsRare) return write(Constant<any>());
  switch (store_context.store_mode) {
    case pairs:
      return write(Constant<pairs>());
    case paired_folds:
      return write(Constant<paired_folds>());
    case singles:
      return write(Constant<singles>());
    case single_folds:
      return write(Constant<single_folds>());
    case any:
      return write(Constant<any>());
  }
}

// `needs_second_factor`: one float32 cannot hold the scale.
template <typename Format, bool kIsRare, int kAccumulatorTiles, bool kHasEpilogue,
          typename Element = typename Format::Element>
__device__ inline void write_results(const Arguments<Element>& problem, const Results<Element>& results,
                                     const StoreContext<kAccumulatorTiles, kHasEpilogue>& store_context,
                                     bool needs_second_factor, float (&accumulators)[kAccumulatorTiles][4]) {
  if (Format::kIsScaled && needs_second_factor) {
#pragma unroll
    for (int t = 0; t < kAccumulatorTiles; ++t) {
      const ColumnPairScales scale(problem, results, store_context.scales.all,
                                   t * kAccumulatorTileColumns + 2 * (threadIdx.x % 4), 0);
      accumulators[t][0] *= scale.first.second_factor, accumulators[t][1] *= scale.second.second_factor;
      accumulators[t][2] *= scale.first.second_factor, accumulators[t][3] *= scale.second.second_factor;
    }
  }
  if constexpr (kHasEpilogue && sizeof(Element) < sizeof(float)) {
    if (problem.has_separate_conv_output) {
      write_results_as<Format, kAccumulatorTiles, kHasEpilogue, kIsRare, float>(problem, results,
                                                                                store_context, accumulators);
      return;
    }
  }
  write_results_as<Format, kAccumulatorTiles, kHasEpilogue, kIsRare, Element>(problem, results, store_context,
                                                                              accumulators);
}

// Range of a filter's contiguous results that the tile stores: all of them, or, if tiles overlap, those from
// the first cache-line boundary in the tile to the first one at or after the start of the next tile. The
// first tile stores from its start, and the last tile to its end.
template <bool kHasEpilogue, typename Element>
struct StoredRange {
  int first, end;

  // `start`: index of the filter's first result from a cache-line boundary.
  __device__ StoredRange(const Arguments<Element>& problem, const Tile& tile, int elements, long long start)
      : first(0), end(elements) {
    if (kHasEpilogue || !problem.stores_lines) return;
    const auto to_boundary = [&](int element) {
      return static_cast<int>(-(start + element) & (Results<Element>::kLineElements - 1));
    };
    const int advance = problem.row_advance * problem.y_width;
    if (tile.first_row > 0) first = to_boundary(0);
    if (tile.first_row + tile.rows < problem.output_height) end = advance + to_boundary(advance);
  }
};

// Results of an image that are contiguous in y.
template <bool kHasEpilogue, typename Element>
struct Segment {
  const Element* from;
  Element* to;
  int elements;
  int head, body;  // elements before the first 16-byte boundary, and in whole 16-byte units from there on

  __device__ Segment(const Arguments<Element>& problem, const Results<Element>& results, int image,
                     int index) {
    constexpr int kAlignmentElements = Results<Element>::kAlignmentElements;
    const ResultStrides& strides = problem.y_strides;
    const Tile& tile = results.tile;
    int filter = index, row = 0;
    if (!strides.rows_are_contiguous) {
      filter = index / tile.y_rows;
      row = index - filter * tile.y_rows;
    }
    long long start = results.start +
                      (static_cast<long long>(image) * problem.out_channels + filter) * problem.y_plane +
                      static_cast<long long>(row) * problem.y_width;
    const int contiguous = tile.y_columns * (strides.rows_are_contiguous ? tile.y_rows : 1) *
                           (strides.planes_are_contiguous ? results.filters : 1);
    const StoredRange<kHasEpilogue, Element> stored(problem, tile, contiguous, start);
    start += stored.first;
    from =
        results.y_staging + image * strides.image + filter * strides.plane + row * strides.row + stored.first;
    to = problem.y + (start - problem.y_misalignment);
    elements = stored.end - stored.first;
    head = min(elements, -static_cast<int>(start) & (kAlignmentElements - 1));
    body = elements - head & ~(kAlignmentElements - 1);
  }

  // Segments of an image.
  static __device__ int count(const Arguments<Element>& problem, const Results<Element>& results) {
    const ResultStrides& strides = problem.y_strides;
    return strides.planes_are_contiguous ? 1
           : strides.rows_are_contiguous ? results.filters
                                         : results.filters * results.tile.y_rows;
  }

  // Stores the index-th element outside the body.
  __device__ void store_edge(int index) const {
    const int at = index < head ? index : index + body;
    to[at] = from[at];
  }
};

// Calls store(segment) for every segment, one thread each. Neighbouring segments go to threads of different
// warps.
template <bool kHasEpilogue, typename Element, typename Store>
__device__ inline void for_each_segment(const Arguments<Element>& problem, const Results<Element>& results,
                                        Store store) {
  const int count = Segment<kHasEpilogue, Element>::count(problem, results);
  constexpr int kWarps = kWarpgroupThreads / 32;
  for (int i = threadIdx.x % 32 * kWarps + warpgroup_thread() / 32; i < results.tile.images * count;
       i += kWarpgroupThreads) {
    const int image = i / count;
    store(Segment<kHasEpilogue, Element>(problem, results, image, i - image * count));
  }
}

// Starts the TMA stores of the segments' bodies and stores the edges by threads.
template <bool kHasEpilogue, typename Element>
__device__ inline void store_by_tma(const Arguments<Element>& problem, const Results<Element>& results) {
  for_each_segment<kHasEpilogue>(problem, results, [&](const Segment<kHasEpilogue, Element>& segment) {
    if (segment.body > 0) {
      tma_store_1d(segment.to + segment.head, segment.from + segment.head, segment.body * sizeof(Element),
                   !kHasEpilogue && problem.evicts_y_first);
    }
    for (int i = 0; i < segment.elements - segment.body; ++i) segment.store_edge(i);
  });
  tma_store_commit_group();
}

// Stores by threads instead of TMA, for data of more than one window: with `adds`, results are added to those
// in y. The same thread stores an element each time, so it reads back its own store.
template <typename Element>
__device__ __noinline__ void store_by_threads(const Arguments<Element>& problem, int index, int first_filter,
                                              int filters, unsigned char* warpgroup_shared, bool adds) {
  const Results<Element> results = Results<Element>::template of<false>(
      problem, Tile::of<false>(problem, index), first_filter, filters, warpgroup_shared);
  const int count = results.tile.images * Segment<false, Element>::count(problem, results);
  for (int i = warpgroup_thread() / 32; i < count; i += kWarpgroupThreads / 32) {
    const int image = i / Segment<false, Element>::count(problem, results);
    const Segment<false, Element> segment(problem, results, image,
                                          i - image * Segment<false, Element>::count(problem, results));
    for (int j = threadIdx.x % 32; j < segment.elements; j += 32) {
      Element value = segment.from[j];
      if (adds) value = static_cast<Element>(static_cast<float>(value) + static_cast<float>(segment.to[j]));
      segment.to[j] = value;
    }
  }
}

}  // namespace convswap::toeplitz
