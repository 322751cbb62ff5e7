#pragma once

// A tile's extents in the Conv output and in y (a pool makes y smaller), and the staging of its input as core
// matrices.

#include "cuda/primitives/global_memory.cuh"
#include "cuda/primitives/shared_memory.cuh"
#include "cuda/primitives/tensor_core_formats.cuh"
#include "cuda/primitives/tma.cuh"
#include "cuda/primitives/warpgroup.cuh"
#include "cuda/toeplitz/arguments.h"

namespace convswap::toeplitz {

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
    const int band = problem.column_tiles.quotient_of_any(index);
    const int column = index - band * static_cast<int>(problem.column_tiles.divisor);
    const int group = problem.bands.quotient_of_any(band);
    const int row = band - group * static_cast<int>(problem.bands.divisor);
    tile.n = static_cast<long long>(group) * problem.images;
    tile.images = min(problem.images, problem.batch - static_cast<int>(tile.n));
    tile.first_row = row * problem.row_advance - (kHasEpilogue ? problem.pool_pad_height : 0);
    tile.rows = min(problem.rows << problem.log2_folds, problem.output_height - tile.first_row);
    tile.y_row = kHasEpilogue ? row * problem.y_rows : tile.first_row;
    tile.y_rows = kHasEpilogue ? min(problem.y_rows, problem.y_height - tile.y_row) : tile.rows;
    const int outputs = problem.cores << problem.log2_outputs;
    tile.first_column = column * outputs;
    tile.columns = min(outputs, problem.output_width - tile.first_column);
    tile.y_columns = kHasEpilogue && problem.pools ? problem.y_width : tile.columns;
    return tile;
  }
};

// Index, within an image, of the core row at a bundle, a row and a core column of the tile's input.
template <typename Element>
__device__ inline int core_index_of(const Arguments<Element>& problem, int bundle, int row, int column) {
  const int row_phases = problem.row_phases.divisor, column_phases = problem.column_phases.divisor;
  const int lower_row = problem.row_phases.quotient(row);
  const int lower_column = problem.column_phases.quotient(column);
  const int plane = (bundle * row_phases + row - lower_row * row_phases) * column_phases + column -
                    lower_column * column_phases;
  return plane * problem.plane_cores + lower_row * static_cast<int>(problem.pitch.divisor) + lower_column;
}

// A core row in registers and its index among the staged core rows.
template <typename Element>
struct CoreRow {
  Element values[kCoreRowElements];
  int core_index;
};

template <typename Element>
__device__ inline void set_staged_items(const Arguments<Element>& problem, StagedItem* items) {
  for (int i = threadIdx.x; i < problem.image_items; i += blockDim.x) {
    const int line = problem.cores_per_row.quotient_of_any(i);
    const int column = i - line * static_cast<int>(problem.cores_per_row.divisor);
    const int row = problem.bundles.quotient(line);
    const int bundle = line - row * static_cast<int>(problem.bundles.divisor);
    items[i] = {(bundle << problem.log2_bundle) * problem.source_plane + row * problem.input_width +
                    (column << (3 - problem.log2_bundle)),
                core_index_of(problem, bundle, row, column)};
  }
}

// True if all loads of a tile need no predicates: all of them lie inside x. Rows below the last are skipped,
// since no result reads them. Pixels that a core row takes from beyond the image's edge meet zero weights.
template <typename Element>
__device__ inline bool is_inside(const Arguments<Element>& problem, const Tile& tile, int first_column) {
  const long long end = (tile.n + tile.images) * problem.in_channels * problem.input_plane;
  const int beyond = first_column + static_cast<int>(problem.cores_per_row.divisor) * kCoreRowElements;
  return problem.is_unpadded && tile.first_row >= 0 && end + beyond <= problem.input_elements;
}

// Loads core row `item` of a tile's image, with predicates. `image` points to the group's first channel of
// the image.
template <typename Format, int kBundle, typename Element = typename Format::Element>
__device__ inline void load_row_predicated(const Arguments<Element>& problem, const Element* image,
                                           int first_row, int first_column, int item,
                                           CoreRow<Element>& core) {
  constexpr int kPixels = kCoreRowElements / kBundle;
  const int line = problem.cores_per_row.quotient_of_any(item);
  const int core_column = item - line * static_cast<int>(problem.cores_per_row.divisor);
  const int row = problem.bundles.quotient(line);
  const int bundle = line - row * static_cast<int>(problem.bundles.divisor);
  const int channel = bundle * kBundle;
  const int h = first_row + row;
  const int column = first_column + core_column * kPixels;
  core.core_index = core_index_of(problem, bundle, row, core_column);
  const bool is_inside = static_cast<unsigned>(h) < static_cast<unsigned>(problem.input_height);
  const int channels_left = is_inside ? problem.channels - channel : 0;
  // Outside the image `source` may point anywhere; the predicates keep it from being read.
  const Element* source = image + (channel * problem.input_plane + h * problem.input_width + column);
#pragma unroll
  for (int c = 0; c < kBundle; ++c) {
#pragma unroll
    for (int pixel = 0; pixel < kPixels; ++pixel) {
      Element& value = core.values[pixel * kBundle + c];
      value = Format::zero();
      if (c < channels_left &&
          static_cast<unsigned>(column + pixel) < static_cast<unsigned>(problem.input_width)) {
        value = source[pixel];
      }
    }
    source += problem.input_plane;
  }
}

// Loads the core row at `source`, in Words if a channel's pixels fill them.
template <typename Word, int kBundle, typename Element>
__device__ inline void load_words(const Arguments<Element>& problem, const Element* source,
                                  CoreRow<Element>& core) {
  constexpr int kPixels = kCoreRowElements / kBundle;
  if constexpr (sizeof(Word) > kPixels * sizeof(Element)) {
    load_words<Element, kBundle>(problem, source, core);
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
        for (int i = 0; i < kWordElements; ++i) core.values[(pixel + i) * kBundle + c] = pixels[i];
      }
      source += problem.source_plane;
    }
  }
}

// Loads a core row from x without predicates.
template <int kBundle, typename Element>
__device__ inline void load_row_unpredicated(const Arguments<Element>& problem, const Element* first,
                                             StagedItem item, CoreRow<Element>& core) {
  core.core_index = item.core_index;
  load_words<Element, kBundle>(problem, first + item.source, core);
}

// Loads a core row that TMA brought to shared memory, in the widest words to which all rows are aligned.
template <int kBundle, typename Element>
__device__ inline void load_row_copied(const Arguments<Element>& problem, const Element* first,
                                       StagedItem item, CoreRow<Element>& core) {
  core.core_index = item.core_index;
  const Element* const source = first + item.source;
  if (problem.load_bytes == sizeof(uint4)) {
    load_words<uint4, kBundle>(problem, source, core);
  } else if (problem.load_bytes == sizeof(uint2)) {
    load_words<uint2, kBundle>(problem, source, core);
  } else if (sizeof(Element) < sizeof(unsigned) && problem.load_bytes == sizeof(unsigned)) {
    load_words<unsigned, kBundle>(problem, source, core);
  } else {
    load_words<Element, kBundle>(problem, source, core);
  }
}

// A tile's input in x: rows of full width, contiguous in each channel.
template <typename Element>
struct InputRows {
  static constexpr int kChunk = kAlignment / sizeof(Element);
  long long start;  // of the first channel of the first image
  int elements;     // of each channel

  __device__ InputRows(const Arguments<Element>& problem, const Tile& tile, int first_channel) {
    const int first_row = tile.first_row * problem.stride_height;
    start = (tile.n * problem.in_channels + first_channel) * problem.input_plane +
            first_row * problem.input_width;
    elements = min(problem.input_rows, problem.input_height - first_row) * problem.input_width;
  }
  // Elements from a 16-byte boundary to the start, in x and in shared memory alike.
  __device__ int misalignment() const { return static_cast<int>(start) & (kChunk - 1); }
};

// Starts the TMA loads of a tile's input and returns true. Returns false if there is no such tile or a
// 16-byte chunk would reach beyond x. Every channel keeps its misalignment to 16 bytes. Kernels with an
// epilogue never load by TMA; the template argument tells the compiler so.
template <bool kHasEpilogue, typename Element>
__device__ inline bool start_copies(const Arguments<Element>& problem, int index, int first_channel,
                                    Element* raw, TmaMbarrier* barrier) {
  if (kHasEpilogue || !problem.copies_input || index >= problem.tiles) return false;
  constexpr int kChunk = InputRows<Element>::kChunk;
  const Tile tile = Tile::of<kHasEpilogue>(problem, index);
  const InputRows<Element> rows(problem, tile, first_channel);
  const long long image_elements = static_cast<long long>(problem.in_channels) * problem.input_plane;
  const long long end = rows.start + (tile.images - 1) * image_elements +
                        (problem.channels - 1) * problem.input_plane + rows.elements;
  if ((end + kChunk - 1 & ~(kChunk - 1ll)) > problem.input_elements) return false;
  if (warpgroup_thread() == 0) {
    for (int image = 0; image < tile.images; ++image) {
      for (int c = 0; c < problem.channels; ++c) {
        const long long begin = rows.start + image * image_elements + c * problem.input_plane;
        const int head = static_cast<int>(begin) & (kChunk - 1);
        const int count = head + rows.elements + kChunk - 1 & ~(kChunk - 1);
        tma_load_1d_expect_tx(
            raw + (rows.misalignment() + image * problem.source_image + c * problem.source_plane - head),
            problem.x + (begin - head), count * sizeof(Element), barrier);
      }
    }
    mbarrier_arrive(barrier);
  }
  return true;
}

// A range of a tile's images and of their input rows.
struct StagedPart {
  int first_image, end_image, first_row, end_row;
};

// Loads a tile's input (from `raw` if TMA loaded it), converts it with the window's scale and stores it as
// core matrices. Returns the value range that the thread has read. With kWindowed, only `part` is staged,
// values outside the window become zero, and `raw` is not used.
template <typename Format, bool kWindowed, int kBundle, typename Element = typename Format::Element>
__device__ inline ValueRange<Element> stage_bundles(const Arguments<Element>& problem, const Tile& tile,
                                                    int first_channel, BinadeWindow window,
                                                    const StagedItem* staged_items, bool is_copied,
                                                    const Element* raw, StagedPart part,
                                                    unsigned* core_matrices) {
  constexpr int kLoadsInFlight = 2;
  const int first_row = tile.first_row * problem.stride_height - problem.pad_height;
  const int first_column = tile.first_column * problem.stride_width - problem.pad_width;
  const bool needs_predicates = problem.copies_input || !is_inside(problem, tile, first_column);
  const int rows = min(problem.input_rows, problem.input_height - first_row);
  int items = needs_predicates && !is_copied ? problem.image_items : rows * problem.items_per_row;
  int first_item = 0;
  if constexpr (kWindowed) {
    first_item = part.first_row * problem.items_per_row;
    items = min(items, part.end_row * problem.items_per_row);
  }
  const Element* const copied = raw + InputRows<Element>(problem, tile, first_channel).misalignment();
  const float scale = window.scale();
  ValueRange<Element> range;

  const auto store = [&](unsigned* target, CoreRow<Element>& core) {
#pragma unroll
    for (int j = 0; j < kCoreRowElements; j += 2) {
      range.include(core.values[j], core.values[j + 1]);
      if constexpr (kWindowed) {
        core.values[j] = window.holds(core.values[j]) ? core.values[j] : Format::zero();
        core.values[j + 1] = window.holds(core.values[j + 1]) ? core.values[j + 1] : Format::zero();
      }
    }
#pragma unroll
    for (int part = 0; part < Format::kParts; ++part) {
      unsigned words[kCoreRowElements / 2];
#pragma unroll
      for (int j = 0; j < kCoreRowElements / 2; ++j) {
        words[j] = Format::pair(core.values[2 * j], core.values[2 * j + 1], scale, part);
      }
      store_shared(target + (core.core_index + part * problem.part_cores) * 4, words[0], words[1], words[2],
                   words[3]);
    }
  };

#pragma unroll 1
  for (int image = kWindowed ? part.first_image : 0; image < (kWindowed ? part.end_image : tile.images);
       ++image) {
    const Element* const source =
        problem.x + ((tile.n + image) * problem.in_channels + first_channel) * problem.input_plane;
    unsigned* const target = core_matrices + image * problem.image_cores * 4;
#pragma unroll 1
    for (int item = first_item + warpgroup_thread(); item < items;
         item += kLoadsInFlight * kWarpgroupThreads) {
      CoreRow<Element> core_rows[kLoadsInFlight];
#pragma unroll
      for (int i = 0; i < kLoadsInFlight; ++i) {
        // Threads without an item load the last one again, which is cheaper than a predicate.
        const int one = min(item + i * kWarpgroupThreads, items - 1);
        if (!kWindowed && is_copied) {
          load_row_copied<kBundle>(problem, copied + image * problem.source_image, staged_items[one],
                                   core_rows[i]);
        } else if (needs_predicates) {
          load_row_predicated<Format, kBundle>(problem, source, first_row, first_column, one, core_rows[i]);
        } else {
          load_row_unpredicated<kBundle>(problem, source + first_row * problem.input_width + first_column,
                                         staged_items[one], core_rows[i]);
        }
      }
#pragma unroll
      for (int i = 0; i < kLoadsInFlight; ++i) store(target, core_rows[i]);
    }
  }
  return range;
}

template <typename Format, bool kWindowed, typename Element = typename Format::Element>
__device__ inline ValueRange<Element> stage_tile(const Arguments<Element>& problem, const Tile& tile,
                                                 int first_channel, BinadeWindow window,
                                                 const StagedItem* items, bool is_copied, const Element* raw,
                                                 StagedPart part, unsigned* core_matrices) {
  switch (problem.log2_bundle) {
    case 0:
      return stage_bundles<Format, kWindowed, 1>(problem, tile, first_channel, window, items, is_copied, raw,
                                                 part, core_matrices);
    case 1:
      return stage_bundles<Format, kWindowed, 2>(problem, tile, first_channel, window, items, is_copied, raw,
                                                 part, core_matrices);
    case 2:
      return stage_bundles<Format, kWindowed, 4>(problem, tile, first_channel, window, items, is_copied, raw,
                                                 part, core_matrices);
    default:
      return stage_bundles<Format, kWindowed, 8>(problem, tile, first_channel, window, items, is_copied, raw,
                                                 part, core_matrices);
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
