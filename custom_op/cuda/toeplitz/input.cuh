#pragma once

// Extents of an output tile in the Conv output and in y (a pool makes y smaller), and the staging of its
// input as vectors, in the order of core matrices.

#include "cuda/primitives/global_memory.cuh"
#include "cuda/primitives/shared_memory.cuh"
#include "cuda/primitives/tensor_core_formats.cuh"
#include "cuda/primitives/tma.cuh"
#include "cuda/primitives/warpgroup.cuh"
#include "cuda/toeplitz/arguments.h"

namespace convswap::toeplitz {

// An output tile.
struct Tile {
  long long n;  // first image
  int images;
  int first_row, rows;        // of the Conv output; with a pool the first may lie in the pool's padding
  int y_row, y_rows;          // of y
  int first_column, columns;  // of the Conv output and y; with a pool all columns of y
  int y_columns;

  // Without an epilogue y is the Conv output; the template argument tells the compiler so.
  template <bool kHasEpilogue, typename Element>
  static __device__ Tile of(const Arguments<Element>& problem, int index) {
    Tile tile;
    const int row_tile_index = problem.column_tiles.quotient_of_any(index);
    const int column = index - row_tile_index * static_cast<int>(problem.column_tiles.divisor);
    const int image_tile = problem.row_tiles.quotient_of_any(row_tile_index);
    const int row = row_tile_index - image_tile * static_cast<int>(problem.row_tiles.divisor);
    tile.n = static_cast<long long>(image_tile) * problem.images;
    tile.images = min(problem.images, problem.batch - static_cast<int>(tile.n));
    tile.first_row = row * problem.row_advance - (kHasEpilogue ? problem.pool_pad_height : 0);
    tile.rows = min(problem.rows << problem.log2_folds, problem.output_height - tile.first_row);
    tile.y_row = kHasEpilogue ? row * problem.y_rows : tile.first_row;
    tile.y_rows = kHasEpilogue ? min(problem.y_rows, problem.y_height - tile.y_row) : tile.rows;
    const int outputs = problem.spans << problem.log2_outputs;
    tile.first_column = column * outputs;
    tile.columns = min(outputs, problem.output_width - tile.first_column);
    tile.y_columns = kHasEpilogue && problem.pools ? problem.y_width : tile.columns;
    return tile;
  }
};

// Index, within a staged image, of the vector at a bundle, a row and a vector column of the tile's input.
template <typename Element>
__device__ inline int vector_index_of(const Arguments<Element>& problem, int bundle, int row, int column) {
  const int row_stride_phases = problem.row_stride_phases.divisor,
            column_stride_phases = problem.column_stride_phases.divisor;
  const int lower_row = problem.row_stride_phases.quotient(row);
  const int lower_column = problem.column_stride_phases.quotient(column);
  const int plane =
      (bundle * row_stride_phases + row - lower_row * row_stride_phases) * column_stride_phases + column -
      lower_column * column_stride_phases;
  return plane * problem.plane_vectors + lower_row * static_cast<int>(problem.pitch.divisor) + lower_column;
}

// A vector in registers, and its index within the staged image.
template <typename Element>
struct InputVector {
  Element values[kVectorElements];
  int vector_index;
};

// Lists the vectors of an image, for loads without predicates.
template <typename Element>
__device__ inline void set_staged_items(const Arguments<Element>& problem, StagedItem* items) {
  for (int i = threadIdx.x; i < problem.image_items; i += blockDim.x) {
    // Rows of the image's items: a row for each bundle of an input row.
    const int bundle_row = problem.vectors_per_row.quotient_of_any(i);
    const int column = i - bundle_row * static_cast<int>(problem.vectors_per_row.divisor);
    const int row = problem.bundles.quotient(bundle_row);
    const int bundle = bundle_row - row * static_cast<int>(problem.bundles.divisor);
    items[i] = {(bundle << problem.log2_bundle) * problem.source_channel_stride + row * problem.input_width +
                    (column << (3 - problem.log2_bundle)),
                vector_index_of(problem, bundle, row, column)};
  }
}

// True if no load of a tile needs a predicate, because all loads lie inside x. Conservative: false for tiles
// that contain the last image. Input rows below the image's last are not loaded, since no result reads them.
// Pixels that a vector takes from beyond the image's edge are multiplied by zeros in all results that are
// stored.
template <typename Element>
__device__ inline bool loads_stay_inside_x(const Arguments<Element>& problem, const Tile& tile,
                                           int first_column) {
  const long long end = (tile.n + tile.images) * problem.in_channels * problem.input_plane;
  const int beyond = first_column + static_cast<int>(problem.vectors_per_row.divisor) * kVectorElements;
  return problem.is_unpadded && tile.first_row >= 0 && end + beyond <= problem.input_elements;
}

// Loads vector `item` of a tile's image, with predicates. `image` points to the conv group's first channel of
// the image.
template <typename Format, int kBundle, typename Element = typename Format::Element>
__device__ inline void load_vector_predicated(const Arguments<Element>& problem, const Element* image,
                                              int first_row, int first_column, int item,
                                              InputVector<Element>& vector) {
  constexpr int kPixels = kVectorElements / kBundle;
  const int bundle_row = problem.vectors_per_row.quotient_of_any(item);
  const int vector_column = item - bundle_row * static_cast<int>(problem.vectors_per_row.divisor);
  const int row = problem.bundles.quotient(bundle_row);
  const int bundle = bundle_row - row * static_cast<int>(problem.bundles.divisor);
  const int channel = bundle * kBundle;
  const int h = first_row + row;
  const int column = first_column + vector_column * kPixels;
  vector.vector_index = vector_index_of(problem, bundle, row, vector_column);
  const bool is_inside = static_cast<unsigned>(h) < static_cast<unsigned>(problem.input_height);
  const int channels_left = is_inside ? problem.channels - channel : 0;
  // Outside the image `source` may point anywhere; the predicates keep it from being read.
  const Element* source = image + (channel * problem.input_plane + h * problem.input_width + column);
#pragma unroll
  for (int c = 0; c < kBundle; ++c) {
#pragma unroll
    for (int pixel = 0; pixel < kPixels; ++pixel) {
      Element& value = vector.values[pixel * kBundle + c];
      value = Format::zero();
      if (c < channels_left &&
          static_cast<unsigned>(column + pixel) < static_cast<unsigned>(problem.input_width)) {
        value = source[pixel];
      }
    }
    source += problem.input_plane;
  }
}

// Loads the vector at `source`, in Words if a channel's pixels fill them.
template <typename Word, int kBundle, typename Element>
__device__ inline void load_words(const Arguments<Element>& problem, const Element* source,
                                  InputVector<Element>& vector) {
  constexpr int kPixels = kVectorElements / kBundle;
  if constexpr (sizeof(Word) > kPixels * sizeof(Element)) {
    load_words<Element, kBundle>(problem, source, vector);
  } else {
    constexpr int kWordElements = sizeof(Word) / sizeof(Element);
#pragma unroll
    for (int c = 0; c < kBundle; ++c) {
#pragma unroll
      for (int pixel = 0; pixel < kPixels; pixel += kWordElements) {
        const Word word = *reinterpret_cast<const Word*>(source + pixel);
        Element pixels[kWordElements];
        memcpy(pixels, &word, sizeof(Word));
#pragma unroll
        for (int i = 0; i < kWordElements; ++i) vector.values[(pixel + i) * kBundle + c] = pixels[i];
      }
      source += problem.source_channel_stride;
    }
  }
}

// Loads a vector from x without predicates.
template <int kBundle, typename Element>
__device__ inline void load_vector_unpredicated(const Arguments<Element>& problem, const Element* first,
                                                StagedItem item, InputVector<Element>& vector) {
  vector.vector_index = item.vector_index;
  load_words<Element, kBundle>(problem, first + item.source, vector);
}

// Loads a vector from the raw input in shared memory, in the widest words to which all vectors are aligned.
template <int kBundle, typename Element>
__device__ inline void load_raw_vector(const Arguments<Element>& problem, const Element* first,
                                       StagedItem item, InputVector<Element>& vector) {
  vector.vector_index = item.vector_index;
  const Element* const source = first + item.source;
  if (problem.load_bytes == sizeof(uint4)) {
    load_words<uint4, kBundle>(problem, source, vector);
  } else if (problem.load_bytes == sizeof(uint2)) {
    load_words<uint2, kBundle>(problem, source, vector);
  } else if (sizeof(Element) < sizeof(unsigned) && problem.load_bytes == sizeof(unsigned)) {
    load_words<unsigned, kBundle>(problem, source, vector);
  } else {
    load_words<Element, kBundle>(problem, source, vector);
  }
}

// A tile's input in x: rows of full width, contiguous in each channel.
template <typename Element>
struct InputRows {
  static constexpr int kAlignmentElements = kAlignment / sizeof(Element);
  long long start;  // of the first channel of the first image
  int elements;     // of each channel

  __device__ InputRows(const Arguments<Element>& problem, const Tile& tile, int first_channel) {
    const int first_row = tile.first_row * problem.stride_height;
    start = (tile.n * problem.in_channels + first_channel) * problem.input_plane +
            first_row * problem.input_width;
    elements = min(problem.input_rows, problem.input_height - first_row) * problem.input_width;
  }
  // Elements from a 16-byte boundary to the start, in x and in shared memory alike.
  __device__ int misalignment() const { return static_cast<int>(start) & (kAlignmentElements - 1); }
};

// Starts the TMA loads of a tile's input and returns true. Returns false if there is no such tile or a
// 16-byte unit would reach beyond x. Every channel keeps its misalignment to 16 bytes. Kernels with an
// epilogue never load by TMA; the template argument tells the compiler so.
template <bool kHasEpilogue, typename Element>
__device__ inline bool start_tma_loads(const Arguments<Element>& problem, int index, int first_channel,
                                       Element* raw, TmaMbarrier* barrier) {
  if (kHasEpilogue || !problem.loads_input_by_tma || index >= problem.output_tiles) return false;
  constexpr int kAlignmentElements = InputRows<Element>::kAlignmentElements;
  const Tile tile = Tile::of<kHasEpilogue>(problem, index);
  const InputRows<Element> rows(problem, tile, first_channel);
  const long long image_elements = static_cast<long long>(problem.in_channels) * problem.input_plane;
  const long long end = rows.start + (tile.images - 1) * image_elements +
                        (problem.channels - 1) * problem.input_plane + rows.elements;
  if ((end + kAlignmentElements - 1 & ~(kAlignmentElements - 1ll)) > problem.input_elements) return false;
  if (warpgroup_thread() == 0) {
    for (int image = 0; image < tile.images; ++image) {
      for (int c = 0; c < problem.channels; ++c) {
        const long long begin = rows.start + image * image_elements + c * problem.input_plane;
        const int head = static_cast<int>(begin) & (kAlignmentElements - 1);
        const int count = head + rows.elements + kAlignmentElements - 1 & ~(kAlignmentElements - 1);
        tma_load_1d_expect_tx(raw + (rows.misalignment() + image * problem.source_image_stride +
                                     c * problem.source_channel_stride - head),
                              problem.x + (begin - head), count * sizeof(Element), barrier);
      }
    }
    mbarrier_arrive(barrier);
  }
  return true;
}

// Range of a tile's images and of their input rows.
struct StagedRange {
  int first_image, end_image, first_row, end_row;
};

// Loads a tile's input (from `raw` if TMA loaded it), converts it with the window's scale and stores it in
// `staged_input`. Returns the value range that the thread has read. With kWindowed, only `staged_range` is
// staged, values outside the window become zero, and `raw` is not used.
template <typename Format, bool kWindowed, int kBundle, typename Element = typename Format::Element>
__device__ inline ValueRange<Element> stage_bundles(const Arguments<Element>& problem, const Tile& tile,
                                                    int first_channel, BinadeWindow window,
                                                    const StagedItem* staged_items, bool is_tma_loaded,
                                                    const Element* raw, StagedRange staged_range,
                                                    unsigned* staged_input) {
  constexpr int kLoadsInFlight = 2;
  const int first_row = tile.first_row * problem.stride_height - problem.pad_height;
  const int first_column = tile.first_column * problem.stride_width - problem.pad_width;
  // With loads_input_by_tma, the offsets of staged_items are those in the raw input.
  const bool can_use_items_for_x =
      !problem.loads_input_by_tma && loads_stay_inside_x(problem, tile, first_column);
  const int rows = min(problem.input_rows, problem.input_height - first_row);
  int items = !can_use_items_for_x && !is_tma_loaded ? problem.image_items : rows * problem.items_per_row;
  int first_item = 0;
  if constexpr (kWindowed) {
    first_item = staged_range.first_row * problem.items_per_row;
    items = min(items, staged_range.end_row * problem.items_per_row);
  }
  const Element* const raw_input = raw + InputRows<Element>(problem, tile, first_channel).misalignment();
  const float scale = window.scale();
  ValueRange<Element> range;

  const auto store = [&](unsigned* target, InputVector<Element>& vector) {
#pragma unroll
    for (int j = 0; j < kVectorElements; j += 2) {
      range.include(vector.values[j], vector.values[j + 1]);
      if constexpr (kWindowed) {
        vector.values[j] = window.holds(vector.values[j]) ? vector.values[j] : Format::zero();
        vector.values[j + 1] = window.holds(vector.values[j + 1]) ? vector.values[j + 1] : Format::zero();
      }
    }
#pragma unroll
    for (int part = 0; part < Format::kParts; ++part) {
      unsigned words[kVectorElements / 2];
#pragma unroll
      for (int j = 0; j < kVectorElements / 2; ++j) {
        words[j] = Format::pair(vector.values[2 * j], vector.values[2 * j + 1], scale, part);
      }
      store_shared(target + (vector.vector_index + part * problem.part_vectors) * 4, words[0], words[1],
                   words[2], words[3]);
    }
  };

#pragma unroll 1
  for (int image = kWindowed ? staged_range.first_image : 0;
       image < (kWindowed ? staged_range.end_image : tile.images); ++image) {
    const Element* const source =
        problem.x + ((tile.n + image) * problem.in_channels + first_channel) * problem.input_plane;
    unsigned* const target = staged_input + image * problem.image_vectors * 4;
#pragma unroll 1
    for (int item = first_item + warpgroup_thread(); item < items;
         item += kLoadsInFlight * kWarpgroupThreads) {
      InputVector<Element> vectors[kLoadsInFlight];
#pragma unroll
      for (int i = 0; i < kLoadsInFlight; ++i) {
        // Threads without an item load the last one again, which is cheaper than a predicate.
        const int clamped_item = min(item + i * kWarpgroupThreads, items - 1);
        if (!kWindowed && is_tma_loaded) {
          load_raw_vector<kBundle>(problem, raw_input + image * problem.source_image_stride,
                                   staged_items[clamped_item], vectors[i]);
        } else if (!can_use_items_for_x) {
          load_vector_predicated<Format, kBundle>(problem, source, first_row, first_column, clamped_item,
                                                  vectors[i]);
        } else {
          load_vector_unpredicated<kBundle>(problem, source + first_row * problem.input_width + first_column,
                                            staged_items[clamped_item], vectors[i]);
        }
      }
#pragma unroll
      for (int i = 0; i < kLoadsInFlight; ++i) store(target, vectors[i]);
    }
  }
  return range;
}

template <typename Format, bool kWindowed, typename Element = typename Format::Element>
__device__ inline ValueRange<Element> stage_tile(const Arguments<Element>& problem, const Tile& tile,
                                                 int first_channel, BinadeWindow window,
                                                 const StagedItem* items, bool is_tma_loaded,
                                                 const Element* raw, StagedRange staged_range,
                                                 unsigned* staged_input) {
  switch (problem.log2_bundle) {
    case 0:
      return stage_bundles<Format, kWindowed, 1>(problem, tile, first_channel, window, items, is_tma_loaded,
                                                 raw, staged_range, staged_input);
    case 1:
      return stage_bundles<Format, kWindowed, 2>(problem, tile, first_channel, window, items, is_tma_loaded,
                                                 raw, staged_range, staged_input);
    case 2:
      return stage_bundles<Format, kWindowed, 4>(problem, tile, first_channel, window, items, is_tma_loaded,
                                                 raw, staged_range, staged_input);
    default:
      return stage_bundles<Format, kWindowed, 8>(problem, tile, first_channel, window, items, is_tma_loaded,
                                                 raw, staged_range, staged_input);
  }
}

// Prefetches the rows of a tile's input to L2.
template <typename Element>
__device__ inline void prefetch_tile(const Arguments<Element>& problem, const Tile& tile, int first_channel) {
  constexpr int kLineElements = kCacheLine / sizeof(Element);
  const int first_row = tile.first_row * problem.stride_height - problem.pad_height;
  const int first = max(0, first_row) * problem.input_width;
  const int end = min(first_row + problem.input_rows, problem.input_height) * problem.input_width;
  const int lines = problem.lines_per_channel.divisor;
  for (int image = 0; image < tile.images; ++image) {
    const Element* const source =
        problem.x + ((tile.n + image) * problem.in_channels + first_channel) * problem.input_plane;
    for (int i = warpgroup_thread(); i < problem.channels * lines; i += kWarpgroupThreads) {
      const int channel = problem.lines_per_channel.quotient_of_any(i);
      const int element = first + (i - channel * lines) * kLineElements;
      if (element < end) prefetch(source + channel * problem.input_plane + element);
    }
  }
}

// Value range of all threads of the warpgroup.
template <typename Element>
__device__ inline ValueRange<Element> reduce_warpgroup(ValueRange<Element> range, int warpgroup,
                                                       WarpgroupState* state) {
  return reduce_threads(range, *state, warpgroup_thread() == 0, [&] { sync_warpgroup(warpgroup); });
}

}  // namespace convswap::toeplitz
