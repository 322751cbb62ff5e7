#pragma once

// The way of a tile's results: from the sums to shared memory, where they lie as in y, and from there to y.

#include "cuda/primitives/bulk_store.cuh"
#include "cuda/primitives/team_barrier.cuh"
#include "cuda/tensor_core_formats.cuh"
#include "cuda/toeplitz/tile.cuh"

namespace convswap::toeplitz {

// The results of some filters of a tile, which are contiguous in y at best as a whole, else by planes or rows.
template <typename Element>
struct Results {
  static constexpr int kChunk = 16 / sizeof(Element);
  Tile tile;
  int filters;
  long long start;  // of the first in y, counted from the boundary of 16 bytes before y
  Element* waiting;  // of the first in shared memory, as far from such a boundary

  __device__ Results(const Arguments<Element>& problem, const Tile& of, int first_filter, int count,
                     unsigned char* shared)
      : tile(of),
        filters(count),
        start(((tile.n * problem.out_channels + first_filter) * problem.output_height + tile.first_row) *
                  problem.output_width +
              tile.first_column + problem.y_misalignment),
        waiting(reinterpret_cast<Element*>(shared) + (static_cast<int>(start) & (kChunk - 1))) {}
};

// Writes the sums of kRows rows of the product, from row `first` of an image on, to where results wait.
// kPairs: neighbouring results are always both of the tile, and aligned as one.
template <typename Format, int kTiles, bool kPairs, typename Element = typename Format::Element>
__device__ inline void write_sums(const Arguments<Element>& problem, const Results<Element>& results,
                                  int image, int first, const FilterScale* scales,
                                  const float (&sums)[kTiles][4]) {
  constexpr int kSize = sizeof(Element);
  const int lane = threadIdx.x % 32;
  const int pair = 2 * (lane % 4);
  const int outputs_mask = (1 << problem.log2_outputs) - 1;
  const int filter_folds = results.filters << problem.log2_folds;
  SharedAddress waiting[2];
  int rows_left[2];
  bool has_second[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int m = first + thread_of_team() / 32 * 16 + lane / 4 + 8 * i;
    const int core_row = problem.pitch.quotient(m);
    const int core = m - core_row * static_cast<int>(problem.pitch.divisor);
    const int row = core_row << problem.log2_folds;
    const int column = (core << problem.log2_outputs) + (pair & outputs_mask);
    rows_left[i] = core < problem.cores && column < results.tile.columns ? results.tile.rows - row : 0;
    has_second[i] = column + 1 < results.tile.columns;
    waiting[i] = shared_address(results.waiting + image * problem.results.image +
                                row * problem.results.row + column);
  }
  const auto result = [&](const FilterScale& scale, float sum) {
    if constexpr (Format::kIsScaled) return sum * scale.factor * scale.rest + scale.bias;
    return sum + scale.bias;
  };
  const auto store = [&](bool condition, SharedAddress target, float value) {
    const float one[] = {value};
    store_shared_if(condition, target, Format::pack(one));
  };
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
    const int filter_fold = (t * kTileColumns + pair) >> problem.log2_outputs;
    const int fold = filter_fold & (problem.folds - 1);
    const FilterScale scale = scales[filter_fold];
    const bool is_filter = filter_fold < filter_folds;
    // Where a core's row has one output, the second sum belongs to the next filter or fold.
    FilterScale next = scale;
    bool is_next = is_filter;
    int next_fold = fold;
    if (!kPairs && problem.log2_outputs == 0) {
      next = scales[filter_fold + 1];
      is_next = filter_fold + 1 < filter_folds;
      next_fold = (filter_fold + 1) & (problem.folds - 1);
    } else {
      next.offset += kSize;
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float values[] = {result(scale, sums[t][2 * i]), result(next, sums[t][2 * i + 1])};
      const bool is_result = is_filter && fold < rows_left[i];
      if constexpr (kPairs) {
        store_shared_if(is_result, waiting[i] + scale.offset, Format::pack(values));
      } else {
        const bool is_inside = has_second[i] || problem.log2_outputs == 0;
        store(is_result, waiting[i] + scale.offset, values[0]);
        store(is_next && is_inside && next_fold < rows_left[i], waiting[i] + next.offset, values[1]);
      }
    }
  }
}

template <typename Format, int kTiles, typename Element = typename Format::Element>
__device__ inline void write_results(const Arguments<Element>& problem, const Results<Element>& results,
                                     int image, int first, const FilterScale* scales,
                                     const float (&sums)[kTiles][4]) {
  if (problem.writes_pairs && results.start % 2 == 0) {
    write_sums<Format, kTiles, true>(problem, results, image, first, scales, sums);
  } else {
    write_sums<Format, kTiles, false>(problem, results, image, first, scales, sums);
  }
}

// Results of an image that are contiguous in y.
template <typename Element>
struct Segment {
  const Element* from;
  Element* to;
  int elements;
  int head, body;  // before the first boundary of 16 bytes, and whole chunks of them from there on

  __device__ Segment(const Arguments<Element>& problem, const Results<Element>& results, int image, int index) {
    constexpr int kChunk = Results<Element>::kChunk;
    const ResultPlaces& places = problem.results;
    const Tile& tile = results.tile;
    int filter = index, row = 0;
    if (!places.rows_join) {
      filter = index / tile.rows;
      row = index - filter * tile.rows;
    }
    from = results.waiting + image * places.image + filter * places.plane + row * places.row;
    const long long start =
        results.start +
        (static_cast<long long>(image) * problem.out_channels + filter) * problem.output_plane +
        static_cast<long long>(row) * problem.output_width;
    to = problem.y + (start - problem.y_misalignment);
    elements = tile.columns * (places.rows_join ? tile.rows : 1) * (places.planes_join ? results.filters : 1);
    head = min(elements, -static_cast<int>(start) & (kChunk - 1));
    body = elements - head & ~(kChunk - 1);
  }

  // How many an image has.
  static __device__ int count(const Arguments<Element>& problem, const Results<Element>& results) {
    const ResultPlaces& places = problem.results;
    return places.planes_join ? 1
           : places.rows_join ? results.filters
                              : results.filters * results.tile.rows;
  }

  // Stores the element of that number among those beside the body.
  __device__ void store_edge(int index) const {
    const int at = index < head ? index : index + body;
    to[at] = from[at];
  }
};

// Calls store(segment, lane) for the segments, each of them a warp's.
template <typename Element, typename Store>
__device__ inline void for_each_segment(const Arguments<Element>& problem, const Results<Element>& results,
                                        Store store) {
  const int count = Segment<Element>::count(problem, results);
  int i = thread_of_team() / 32;
#pragma unroll 1
  for (int image = 0; image < results.tile.images; ++image) {
#pragma unroll 1
    for (; i < count; i += kTeamThreads / 32) {
      store(Segment<Element>(problem, results, image, i), static_cast<int>(threadIdx.x % 32));
    }
    i -= count;
  }
}

// Starts the copies of the segments' bodies; what lies beside them is stored by the lanes.
template <typename Element>
__device__ inline void store_in_bulk(const Arguments<Element>& problem, const Results<Element>& results) {
  for_each_segment(problem, results, [](const Segment<Element>& segment, int lane) {
    if (lane == 0 && segment.body > 0) {
      bulk_store(segment.to + segment.head, segment.from + segment.head, segment.body * sizeof(Element));
    }
    if (lane < segment.elements - segment.body) segment.store_edge(lane);
  });
  commit_bulk_stores();
}

// The same by ordinary stores, for data of more than one window: what is in y is kept and added to. An
// element is always stored by the same thread, which thus finds what it added to.
template <typename Element>
__device__ __noinline__ void store_by_threads(const Arguments<Element>& problem,
                                              Results<Element> results, bool adds) {
  for_each_segment(problem, results, [&](const Segment<Element>& segment, int lane) {
    for (int j = lane; j < segment.elements; j += 32) {
      Element value = segment.from[j];
      if (adds) value = static_cast<Element>(static_cast<float>(value) + static_cast<float>(segment.to[j]));
      segment.to[j] = value;
    }
  });
}

}  // namespace convswap::toeplitz
