#pragma once

// The way of a tile's results: from the sums to shared memory, where they lie as in y, and from there to y.

#include "conv/host_device.h"
#include "cuda/primitives/nan_min_max.cuh"
#include "cuda/primitives/shared_memory.cuh"
#include "cuda/primitives/tensor_core_formats.cuh"
#include "cuda/primitives/tma.cuh"
#include "cuda/primitives/warpgroup.cuh"
#include "cuda/toeplitz/input.cuh"

namespace convswap::toeplitz {

// What comes of some filters of a tile. It goes to y as a whole at best, else by planes or rows.
template <typename Element>
struct Results {
  static constexpr int kChunk = kAlignment / sizeof(Element), kOfLine = kCacheLine / sizeof(Element);
  Tile tile;
  int first_filter, filters;
  long long start;  // of the first in y, counted from the boundary of a line before y
  Element* stored;  // what goes to y, as far from such a boundary as there
  void* waiting;    // what is written of the sums, as float32 where it lies apart from what goes to y

  template <bool kFinishes>
  static __device__ Results of(const Arguments<Element>& problem, const Tile& tile, int first_filter,
                               int filters, unsigned char* own) {
    Results results;
    results.tile = tile;
    results.first_filter = first_filter;
    results.filters = filters;
    results.start =
        ((tile.n * problem.out_channels + first_filter) * problem.y_height + tile.y_row) * problem.y_width +
        tile.first_column + problem.y_misalignment;
    const int beyond = static_cast<int>(results.start) & (kOfLine - 1);
    results.stored = reinterpret_cast<Element*>(problem.shared.stored.in(own)) + beyond;
    results.waiting = results.stored;
    if (kFinishes && problem.lies_apart) {
      float* const apart = reinterpret_cast<float*>(problem.shared.results.in(own));
      results.waiting = problem.finish == Finish::everything ? apart : apart + beyond;
    }
    return results;
  }
};

// The scales of a thread's two columns of a tile: of one filter and fold, or, where a core's row has one
// output, of two.
struct ColumnScales {
  FilterScale first, second;
  bool is_first, is_second;  // whether there are such filters
  int first_fold, second_fold;

  template <typename Element>
  __device__ ColumnScales(const Arguments<Element>& problem, const Results<Element>& results,
                          const FilterScale* scales, int column, int size) {
    const int filter_folds = results.filters << problem.log2_folds;
    const int index = column >> problem.log2_outputs;
    const int step = problem.log2_outputs == 0 ? 1 : 0;
    first = scales[index];
    second = step == 0 ? first : scales[index + 1];
    if (step == 0) second.offset += size;
    is_first = index < filter_folds;
    is_second = index + step < filter_folds;
    first_fold = index & (problem.folds - 1);
    second_fold = (index + step) & (problem.folds - 1);
  }
};

// The scales of a thread's columns, tile by tile, where a core's row has several outputs. The compiler takes
// no load past a store, so all are fetched before the first result is stored; of more tiles, or where
// something follows, holding all of them cost more registers than that saved (benchmarks/toeplitz.md,
// versions 9, 11, 12 and 15), and each is fetched while the one before is used.
template <int kTiles, bool kFinishes>
struct OwnScales {
  static constexpr bool kAreHeld = kTiles <= 6 && !kFinishes;
  FilterScale held[kAreHeld ? kTiles : 1];
  const FilterScale* all;  // of the filter block
  int log2_outputs;

  template <typename Element>
  __device__ OwnScales(const Arguments<Element>& problem, const FilterScale* scales)
      : all(scales), log2_outputs(problem.log2_outputs) {
#pragma unroll
    for (int t = 0; t < (kAreHeld ? kTiles : 1); ++t) held[t] = found(t);
  }
  // Calls use(t, scale) for every kStep-th tile.
  template <int kStep = 1, typename Use>
  __device__ void for_each_tile(Use use) const {
    FilterScale next = held[0];
#pragma unroll
    for (int t = 0; t < kTiles; t += kStep) {
      const FilterScale scale = next;
      if (t + kStep < kTiles) next = kAreHeld ? held[kAreHeld ? t + kStep : 0] : found(t + kStep);
      use(t, scale);
    }
  }

 private:
  __device__ FilterScale found(int t) const {
    return all[(t * kTileColumns + 2 * (threadIdx.x % 4)) >> log2_outputs];
  }
};

// How the sums of a tile's rows and columns are written. But for the last, all columns are filters, and each
// core's row has several outputs.
enum class Writing {
  pairs,         // each filter has one fold, and results in pairs
  paired_folds,  // each filter has several folds, and results in pairs: neighbours that are always both of
                 // the tile, and aligned as one
  columns,       // each filter has one fold
  folds,         // each filter has several folds
  any,           // with every question asked of every result
};

// The way of all results of a filter block. Of sums that are pooled it says nothing.
template <int kTiles, typename Element>
__device__ inline Writing writing_of(const Arguments<Element>& problem, const Results<Element>& results) {
  const bool is_full =
      results.filters << (problem.log2_outputs + problem.log2_folds) == kTiles * kTileColumns &&
      problem.log2_outputs > 0;
  if (!is_full) return Writing::any;
  const bool is_paired =
      problem.writes_pairs && (shared_address(results.waiting) & (2 * problem.result_bytes - 1)) == 0;
  if (problem.folds > 1) return is_paired ? Writing::paired_folds : Writing::folds;
  return is_paired ? Writing::pairs : Writing::columns;
}

// A result of a sum. kFinishes: within the bounds of what follows.
template <bool kFinishes, typename Element>
__device__ inline float result_of(const Arguments<Element>& problem, const FilterScale& scale, float sum) {
  const float result = sum * scale.factor + scale.bias;
  if constexpr (!kFinishes) return result;
  return min_nan(max_nan(result, problem.least), problem.most);
}

// Stored: the type of the results as they wait.
template <typename Format, typename Stored>
__device__ inline void store_result(SharedAddress target, float result) {
  if constexpr (kAreSame<Stored, float>) {
    store_shared_at(target, __float_as_uint(result));
  } else {
    const float results[] = {result};
    store_shared_at(target, Format::pack(results));
  }
}

// The product's rows of which a thread has sums, for i = 0 and 1, and the first column of its pairs.
struct SumPlace {
  int core_row, core, column;

  template <typename Element>
  __device__ SumPlace(const Arguments<Element>& problem, int first, int i) {
    const int lane = threadIdx.x % 32;
    const int m = first + warpgroup_thread() / 32 * 16 + lane / 4 + 8 * i;
    core_row = problem.pitch.quotient(m);
    core = m - core_row * static_cast<int>(problem.pitch.divisor);
    column = (core << problem.log2_outputs) + (2 * (lane % 4) & ((1 << problem.log2_outputs) - 1));
  }
};

// Where the results of a thread's pairs of sums go, for i = 0 and 1, and how many rows of the tile there are
// from there on, for the first and the second of a pair: so many of its folds are results. Where sums are
// pooled, one pair is of a window, of which there is one result.
struct OwnPlaces {
  SharedAddress waiting[2];
  int rows_left[2], second_rows_left[2];

  // Of rows of the product from row `first` of an image on.
  template <bool kFinishes, typename Element>
  static __device__ OwnPlaces of(const Arguments<Element>& problem, const Results<Element>& results,
                                 int image, int first) {
    const Tile& tile = results.tile;
    const bool pools = kFinishes && problem.pools_sums;
    const int log2_folds = pools ? 0 : problem.log2_folds, log2_columns = pools ? 1 : 0;
    const int rows = pools ? tile.y_rows : tile.rows, columns = pools ? tile.y_columns : tile.columns;
    OwnPlaces places;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const SumPlace sum(problem, first, i);
      const int row = sum.core_row << log2_folds, column = sum.column >> log2_columns;
      places.rows_left[i] = sum.core < problem.cores && column < columns ? rows - row : 0;
      places.second_rows_left[i] = column + 1 < columns ? places.rows_left[i] : 0;
      const int element = image * problem.results.image + row * problem.results.row + column;
      places.waiting[i] = shared_address(results.waiting) + element * problem.result_bytes;
    }
    return places;
  }
};

// What a thread knows of the results of kRows rows before it has their sums: how and where to write them.
template <int kTiles, bool kFinishes>
struct Prepared {
  Writing writing;
  OwnPlaces places;
  OwnScales<kTiles, kFinishes> scales;

  // Of rows from row `first` of an image on. `scales`: of the filter block.
  template <typename Element>
  __device__ Prepared(const Arguments<Element>& problem, const Results<Element>& results, Writing writing,
                      int image, int first, const FilterScale* scales)
      : writing(writing),
        places(OwnPlaces::of<kFinishes>(problem, results, image, first)),
        scales(problem, scales) {}
};

// Writes the sums of kRows rows of the product to where results wait.
template <typename Format, int kTiles, bool kFinishes, Writing kWriting, typename Stored,
          typename Element = typename Format::Element>
__device__ inline void write_sums(const Arguments<Element>& problem, const Results<Element>& results,
                                  const Prepared<kTiles, kFinishes>& prepared,
                                  const float (&accumulators)[kTiles][4]) {
  constexpr int kSize = sizeof(Stored);
  const OwnPlaces& places = prepared.places;
  const int pair = 2 * (threadIdx.x % 4);
  const auto store = [&](SharedAddress target, const FilterScale& scale, float sum) {
    store_result<Format, Stored>(target, result_of<kFinishes>(problem, scale, sum));
  };
  if constexpr (kWriting == Writing::any) {
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      const ColumnScales scale(problem, results, prepared.scales.all, t * kTileColumns + pair, kSize);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (scale.is_first && scale.first_fold < places.rows_left[i]) {
          store(places.waiting[i] + scale.first.offset, scale.first, accumulators[t][2 * i]);
        }
        if (scale.is_second && scale.second_fold < places.rows_left[i] &&
            (places.second_rows_left[i] > 0 || problem.log2_outputs == 0)) {
          store(places.waiting[i] + scale.second.offset, scale.second, accumulators[t][2 * i + 1]);
        }
      }
    }
  } else {
    constexpr bool kAreFolds = kWriting == Writing::folds || kWriting == Writing::paired_folds;
    constexpr bool kArePairs = kWriting == Writing::pairs || kWriting == Writing::paired_folds;
    prepared.scales.for_each_tile([&](int t, const FilterScale& scale) {
      const int filter_fold = (t * kTileColumns + pair) >> problem.log2_outputs;
      const int fold = kAreFolds ? filter_fold & (problem.folds - 1) : 0;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const SharedAddress target = places.waiting[i] + scale.offset;
        if constexpr (kArePairs) {
          const float both[] = {result_of<kFinishes>(problem, scale, accumulators[t][2 * i]),
                                result_of<kFinishes>(problem, scale, accumulators[t][2 * i + 1])};
          if (fold < places.rows_left[i]) {
            if constexpr (kAreSame<Stored, float>) {
              store_shared_at(target, make_uint2(__float_as_uint(both[0]), __float_as_uint(both[1])));
            } else {
              store_shared_at(target, Format::pack(both));
            }
          }
        } else {
          if (fold < places.rows_left[i]) store(target, scale, accumulators[t][2 * i]);
          if (fold < places.second_rows_left[i]) store(target + kSize, scale, accumulators[t][2 * i + 1]);
        }
      }
    });
  }
}

// Where two output rows are folded and what follows is a pool of 2 x 2: a thread and its neighbour have the
// four sums of a window, of which they write one result. Averages take results, maxima sums, since no scale
// is negative and no bound changes their order.
template <typename Format, int kTiles, bool kAverages, typename Stored,
          typename Element = typename Format::Element>
__device__ inline void write_pooled(const Arguments<Element>& problem, const Results<Element>& results,
                                    const Prepared<kTiles, true>& prepared,
                                    const float (&accumulators)[kTiles][4]) {
  const int pair = 2 * (threadIdx.x % 4);
  const OwnPlaces& places = prepared.places;
  const auto both = [&](const FilterScale& scale, float a, float b) {
    return kAverages ? result_of<true>(problem, scale, a) + result_of<true>(problem, scale, b)
                     : max_nan(a, b);
  };
  const auto store = [&](SharedAddress target, const FilterScale& scale, float a, float b) {
    store_result<Format, Stored>(
        target + scale.offset, kAverages ? 0.25f * (a + b) : result_of<true>(problem, scale, max_nan(a, b)));
  };
  if (problem.log2_outputs == 3) {
    // A tile of columns is a fold: the window's rows are sums of the same thread.
    prepared.scales.template for_each_tile<2>([&](int t, const FilterScale& scale) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float upper = both(scale, accumulators[t][2 * i], accumulators[t][2 * i + 1]);
        const float lower = both(scale, accumulators[t + 1][2 * i], accumulators[t + 1][2 * i + 1]);
        if (places.rows_left[i] > 0 && t / 2 < results.filters) store(places.waiting[i], scale, upper, lower);
      }
    });
    return;
  }
  // A neighbour has the window's other row. Each gives the other what that one writes.
  const int distance = 1 << (problem.log2_outputs - 1);
  const bool is_lower = (threadIdx.x & distance) != 0;
  const SharedAddress waiting = is_lower ? places.waiting[1] : places.waiting[0];
  const bool is_inside = (is_lower ? places.rows_left[1] : places.rows_left[0]) > 0;
  prepared.scales.for_each_tile([&](int t, const FilterScale& scale) {
    const int filter_fold = (t * kTileColumns + pair) >> problem.log2_outputs;
    const float first_row = both(scale, accumulators[t][0], accumulators[t][1]);
    const float second_row = both(scale, accumulators[t][2], accumulators[t][3]);
    const float given = __shfl_xor_sync(~0u, is_lower ? first_row : second_row, distance);
    if (is_inside && filter_fold / 2 < results.filters) {
      store(waiting, scale, is_lower ? second_row : first_row, given);
    }
  });
}

// kIsRare: it need not be fast, so that the one way that asks every question is all that is compiled.
template <typename Format, int kTiles, bool kFinishes, bool kIsRare, typename Stored,
          typename Element = typename Format::Element>
__device__ inline void write_as(const Arguments<Element>& problem, const Results<Element>& results,
                                const Prepared<kTiles, kFinishes>& prepared,
                                const float (&accumulators)[kTiles][4]) {
  if constexpr (kFinishes) {
    if (problem.pools_sums) {
      if (problem.definition.epilogue.pool.kind == PoolKind::average) {
        write_pooled<Format, kTiles, true, Stored>(problem, results, prepared, accumulators);
      } else {
        write_pooled<Format, kTiles, false, Stored>(problem, results, prepared, accumulators);
      }
      return;
    }
  }
  const auto write = [&](auto writing) {
    write_sums<Format, kTiles, kFinishes, decltype(writing)::value, Stored>(problem, results, prepared,
                                                                            accumulators);
  };
  using enum Writing;
  if constexpr (kIsRare) return write(Constant<any>());
  switch (prepared.writing) {
    case pairs:
      return write(Constant<pairs>());
    case paired_folds:
      return write(Constant<paired_folds>());
    case columns:
      return write(Constant<columns>());
    case folds:
      return write(Constant<folds>());
    case any:
      return write(Constant<any>());
  }
}

// `is_far`: one factor does not hold what undoes the scales.
template <typename Format, bool kIsRare, int kTiles, bool kFinishes,
          typename Element = typename Format::Element>
__device__ inline void write_results(const Arguments<Element>& problem, const Results<Element>& results,
                                     const Prepared<kTiles, kFinishes>& prepared, bool is_far,
                                     float (&accumulators)[kTiles][4]) {
  if (Format::kIsScaled && is_far) {
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      const ColumnScales scale(problem, results, prepared.scales.all,
                               t * kTileColumns + 2 * (threadIdx.x % 4), 0);
      accumulators[t][0] *= scale.first.rest, accumulators[t][1] *= scale.second.rest;
      accumulators[t][2] *= scale.first.rest, accumulators[t][3] *= scale.second.rest;
    }
  }
  if constexpr (kFinishes && sizeof(Element) < sizeof(float)) {
    if (problem.lies_apart) {
      write_as<Format, kTiles, kFinishes, kIsRare, float>(problem, results, prepared, accumulators);
      return;
    }
  }
  write_as<Format, kTiles, kFinishes, kIsRare, Element>(problem, results, prepared, accumulators);
}

// Which results of a filter the tile stores, of those that follow each other in y: all, or where tiles
// overlap whole lines of the cache, up to the one in which the next tile begins.
template <bool kFinishes, typename Element>
struct OwnElements {
  int first, end;

  // `start`: of the filter's first result, from the boundary of a line.
  __device__ OwnElements(const Arguments<Element>& problem, const Tile& tile, int elements, long long start)
      : first(0), end(elements) {
    if (kFinishes || !problem.stores_lines) return;
    const auto to_boundary = [&](int element) {
      return static_cast<int>(-(start + element) & (Results<Element>::kOfLine - 1));
    };
    const int advance = problem.row_advance * problem.y_width;
    if (tile.first_row > 0) first = to_boundary(0);
    if (tile.first_row + tile.rows < problem.output_height) end = advance + to_boundary(advance);
  }
};

// Results of an image that are contiguous in y.
template <bool kFinishes, typename Element>
struct Segment {
  const Element* from;
  Element* to;
  int elements;
  int head, body;  // before the first boundary of 16 bytes, and whole chunks of them from there on

  __device__ Segment(const Arguments<Element>& problem, const Results<Element>& results, int image,
                     int index) {
    constexpr int kChunk = Results<Element>::kChunk;
    const ResultPlaces& places = problem.stored;
    const Tile& tile = results.tile;
    int filter = index, row = 0;
    if (!places.rows_join) {
      filter = index / tile.y_rows;
      row = index - filter * tile.y_rows;
    }
    long long start = results.start +
                      (static_cast<long long>(image) * problem.out_channels + filter) * problem.y_plane +
                      static_cast<long long>(row) * problem.y_width;
    const int contiguous =
        tile.y_columns * (places.rows_join ? tile.y_rows : 1) * (places.planes_join ? results.filters : 1);
    const OwnElements<kFinishes, Element> own(problem, tile, contiguous, start);
    start += own.first;
    from = results.stored + image * places.image + filter * places.plane + row * places.row + own.first;
    to = problem.y + (start - problem.y_misalignment);
    elements = own.end - own.first;
    head = min(elements, -static_cast<int>(start) & (kChunk - 1));
    body = elements - head & ~(kChunk - 1);
  }

  // How many an image has.
  static __device__ int count(const Arguments<Element>& problem, const Results<Element>& results) {
    const ResultPlaces& places = problem.stored;
    return places.planes_join ? 1
           : places.rows_join ? results.filters
                              : results.filters * results.tile.y_rows;
  }

  // Stores the element of that number among those beside the body.
  __device__ void store_edge(int index) const {
    const int at = index < head ? index : index + body;
    to[at] = from[at];
  }
};

// Calls store(segment) for every segment, in one thread each; neighbours are threads of different warps.
template <bool kFinishes, typename Element, typename Store>
__device__ inline void for_each_segment(const Arguments<Element>& problem, const Results<Element>& results,
                                        Store store) {
  const int count = Segment<kFinishes, Element>::count(problem, results);
  constexpr int kWarps = kWarpgroupThreads / 32;
  for (int i = threadIdx.x % 32 * kWarps + warpgroup_thread() / 32; i < results.tile.images * count;
       i += kWarpgroupThreads) {
    const int image = i / count;
    store(Segment<kFinishes, Element>(problem, results, image, i - image * count));
  }
}

// Starts the copies of the segments' bodies, and stores what lies beside them.
template <bool kFinishes, typename Element>
__device__ inline void store_in_bulk(const Arguments<Element>& problem, const Results<Element>& results) {
  for_each_segment<kFinishes>(problem, results, [&](const Segment<kFinishes, Element>& segment) {
    if (segment.body > 0) {
      tma_store_1d(segment.to + segment.head, segment.from + segment.head, segment.body * sizeof(Element),
                   !kFinishes && problem.leaves_first);
    }
    for (int i = 0; i < segment.elements - segment.body; ++i) segment.store_edge(i);
  });
  tma_store_commit_group();
}

// The same by ordinary stores, for data of more than one window: what is in y is kept and added to. An
// element is always stored by the same thread, which thus finds what it added to.
template <typename Element>
__device__ __noinline__ void store_by_threads(const Arguments<Element>& problem, int index, int first_filter,
                                              int filters, unsigned char* own, bool adds) {
  const Results<Element> results = Results<Element>::template of<false>(
      problem, Tile::of<false>(problem, index), first_filter, filters, own);
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
