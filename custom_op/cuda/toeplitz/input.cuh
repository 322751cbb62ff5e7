#pragma once

// Where a tile lies, in the convolution's output and in y, which a pool makes smaller.

#include "cuda/primitives/global_memory.cuh"
#include "cuda/primitives/shared_memory.cuh"
#include "cuda/primitives/tensor_core_formats.cuh"
#include "cuda/primitives/tma.cuh"
#include "cuda/primitives/warpgroup.cuh"
#include "cuda/toeplitz/arguments.h"

namespace convswap::toeplitz {

struct Tile {
  long long n;  // its first image
  int images;
  int first_row, rows;        // of the convolution's output; with a pool the first may lie in its padding
  int y_row, y_rows;          // of y
  int first_column, columns;  // of both; with a pool all columns of y
  int y_columns;

  // kFinishes: something follows the convolution. Else both are one, which the compiler shall know.
  template <bool kFinishes, typename Element>
  static __device__ Tile of(const Arguments<Element>& problem, int index) {
    Tile tile;
    const int band = problem.column_tiles.quotient_of_any(index);
    const int column = index - band * static_cast<int>(problem.column_tiles.divisor);
    const int group = problem.bands.quotient_of_any(band);
    const int row = band - group * static_cast<int>(problem.bands.divisor);
    tile.n = static_cast<long long>(group) * problem.images;
    tile.images = min(problem.images, problem.batch - static_cast<int>(tile.n));
    tile.first_row = row * problem.row_advance - (kFinishes ? problem.pool_pad_height : 0);
    tile.rows = min(problem.rows << problem.log2_folds, problem.output_height - tile.first_row);
    tile.y_row = kFinishes ? row * problem.y_rows : tile.first_row;
    tile.y_rows = kFinishes ? min(problem.y_rows, problem.y_height - tile.y_row) : tile.rows;
    const int outputs = problem.cores << problem.log2_outputs;
    tile.first_column = column * outputs;
    tile.columns = min(outputs, problem.output_width - tile.first_column);
    tile.y_columns = kFinishes && problem.pools ? problem.y_width : tile.columns;
    return tile;
  }
};

// The way of a tile's input into the cores of a warpgroup.

// Where the cores of a bundle, a row and a core column of the tile's input begin, among those of an image.
template <typename Element>
__device__ inline int core_place(const Arguments<Element>& problem, int bundle, int row, int column) {
  const int row_phases = problem.row_phases.divisor, column_phases = problem.column_phases.divisor;
  const int lower_row = problem.row_phases.quotient(row);
  const int lower_column = problem.column_phases.quotient(column);
  const int plane = (bundle * row_phases + row - lower_row * row_phases) * column_phases + column -
                    lower_column * column_phases;
  return plane * problem.plane_cores + lower_row * static_cast<int>(problem.pitch.divisor) + lower_column;
}

// One row of a core, on its way.
template <typename Element>
struct CoreRow {
  Element values[kCoreElements];
  int place;
};

template <typename Element>
__device__ inline void find_items(const Arguments<Element>& problem, StagedItem* items) {
  for (int i = threadIdx.x; i < problem.image_items; i += blockDim.x) {
    const int line = problem.cores_per_row.quotient_of_any(i);
    const int column = i - line * static_cast<int>(problem.cores_per_row.divisor);
    const int row = problem.bundles.quotient(line);
    const int bundle = line - row * static_cast<int>(problem.bundles.divisor);
    items[i] = {(bundle << problem.log2_bundle) * problem.source_plane + row * problem.input_width +
                    (column << (3 - problem.log2_bundle)),
                core_place(problem, bundle, row, column)};
  }
}

// Whether all that a tile stages may be loaded without a question: all of it lies inside, but for rows below
// the last, which are left as they are since no result takes them, and what a core's row takes from beside
// the image, which meets weights of zero only.
template <typename Element>
__device__ inline bool is_inside(const Arguments<Element>& problem, const Tile& tile, int first_column) {
  const long long end = (tile.n + tile.images) * problem.in_channels * problem.input_plane;
  const int beyond = first_column + static_cast<int>(problem.cores_per_row.divisor) * kCoreElements;
  return problem.is_unpadded && tile.first_row >= 0 && end + beyond <= problem.input_elements;
}

// Loads the row of that number among those of a tile's image; `image` is where the group's first channel of
// the image begins.
template <typename Format, int kBundle, typename Element = typename Format::Element>
__device__ inline void load_row(const Arguments<Element>& problem, const Element* image, int first_row,
                                int first_column, int item, CoreRow<Element>& core) {
  constexpr int kPixels = kCoreElements / kBundle;
  const int line = problem.cores_per_row.quotient_of_any(item);
  const int core_column = item - line * static_cast<int>(problem.cores_per_row.divisor);
  const int row = problem.bundles.quotient(line);
  const int bundle = line - row * static_cast<int>(problem.bundles.divisor);
  const int channel = bundle * kBundle;
  const int h = first_row + row;
  const int column = first_column + core_column * kPixels;
  core.place = core_place(problem, bundle, row, core_column);
  const bool is_inside = static_cast<unsigned>(h) < static_cast<unsigned>(problem.input_height);
  const int channels_left = is_inside ? problem.channels - channel : 0;
  // Outside of the image these point anywhere, and nothing is loaded.
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

// Loads the row of a core that begins at `source`, as Words where a channel's pixels fill them.
template <typename Word, int kBundle, typename Element>
__device__ inline void load_words(const Arguments<Element>& problem, const Element* source,
                                  CoreRow<Element>& core) {
  constexpr int kPixels = kCoreElements / kBundle;
  if constexpr (sizeof(Word) > kPixels * sizeof(Element)) {
    load_words<Element, kBundle>(problem, source, core);
  } else {
    constexpr int kOfWord = sizeof(Word) / sizeof(Element);
#pragma unroll
    for (int c = 0; c < kBundle; ++c) {
#pragma unroll
      for (int pixel = 0; pixel < kPixels; pixel += kOfWord) {
        const Word word = *reinterpret_cast<const Word*>(source + pixel);
        Element pixels[kOfWord];
        memcpy(pixels, &word, sizeof(Word));
#pragma unroll
        for (int i = 0; i < kOfWord; ++i) core.values[(pixel + i) * kBundle + c] = pixels[i];
      }
      source += problem.source_plane;
    }
  }
}

// The same as load_row without a question.
template <int kBundle, typename Element>
__device__ inline void load_inside(const Arguments<Element>& problem, const Element* first, StagedItem item,
                                   CoreRow<Element>& core) {
  core.place = item.place;
  load_words<Element, kBundle>(problem, first + item.from, core);
}

// The same of what copies have brought, in words as long as all rows are aligned to.
template <int kBundle, typename Element>
__device__ inline void load_copied(const Arguments<Element>& problem, const Element* first, StagedItem item,
                                   CoreRow<Element>& core) {
  core.place = item.place;
  const Element* const source = first + item.from;
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

// A tile's input where it lies in x: rows of full width, contiguous for each channel.
template <typename Element>
struct InputRows {
  static constexpr int kChunk = kAlignment / sizeof(Element);
  long long start;  // of the first channel's in the first image
  int elements;     // of each channel

  __device__ InputRows(const Arguments<Element>& problem, const Tile& tile, int first_channel) {
    const int first_row = tile.first_row * problem.stride_height;
    start = (tile.n * problem.in_channels + first_channel) * problem.input_plane +
            first_row * problem.input_width;
    elements = min(problem.input_rows, problem.input_height - first_row) * problem.input_width;
  }
  // How far it begins from a boundary of a chunk, here and where copies bring it.
  __device__ int beyond() const { return static_cast<int>(start) & (kChunk - 1); }
};

// Starts the copies of a tile's input, if there is such a tile and no chunk reaches beyond x; whether it did.
// Every channel comes to lie as far from a boundary of a chunk as in x. kFinishes: none are ever asked for,
// which the compiler shall know.
template <bool kFinishes, typename Element>
__device__ inline bool start_copies(const Arguments<Element>& problem, int index, int first_channel,
                                    Element* raw, TmaMbarrier* barrier) {
  if (kFinishes || !problem.copies_input || index >= problem.tiles) return false;
  constexpr int kChunk = InputRows<Element>::kChunk;
  const Tile tile = Tile::of<kFinishes>(problem, index);
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
            raw + (rows.beyond() + image * problem.source_image + c * problem.source_plane - head),
            problem.x + (begin - head), count * sizeof(Element), barrier);
      }
    }
    mbarrier_arrive(barrier);
  }
  return true;
}

// Images of a tile, and rows of their input.
struct StagedPart {
  int first_image, end_image, first_row, end_row;
};

// Loads a tile's input, from `raw` where it was copied to, converts it with the window's scale and stores it
// as cores; returns what the thread has seen. `kWindowed` leaves out what lies outside the window, of input
// that no copies have brought, and stages a part only, else all.
template <typename Format, bool kWindowed, int kBundle, typename Element = typename Format::Element>
__device__ inline ValueRange<Element> stage_bundles(const Arguments<Element>& problem, const Tile& tile,
                                                    int first_channel, BinadeWindow window,
                                                    const StagedItem* places, bool is_copied,
                                                    const Element* raw, StagedPart part, unsigned* cores) {
  constexpr int kAtOnce = 2;  // loads in flight before the first store
  const int first_row = tile.first_row * problem.stride_height - problem.pad_height;
  const int first_column = tile.first_column * problem.stride_width - problem.pad_width;
  const bool asks = problem.copies_input || !is_inside(problem, tile, first_column);
  const int rows = min(problem.input_rows, problem.input_height - first_row);
  int items = asks && !is_copied ? problem.image_items : rows * problem.items_per_row;
  int first_item = 0;
  if constexpr (kWindowed) {
    first_item = part.first_row * problem.items_per_row;
    items = min(items, part.end_row * problem.items_per_row);
  }
  const Element* const copied = raw + InputRows<Element>(problem, tile, first_channel).beyond();
  const float scale = window.scale();
  ValueRange<Element> range;

  const auto store = [&](unsigned* target, CoreRow<Element>& core) {
#pragma unroll
    for (int j = 0; j < kCoreElements; j += 2) {
      range.include(core.values[j], core.values[j + 1]);
      if constexpr (kWindowed) {
        core.values[j] = window.holds(core.values[j]) ? core.values[j] : Format::zero();
        core.values[j + 1] = window.holds(core.values[j + 1]) ? core.values[j + 1] : Format::zero();
      }
    }
#pragma unroll
    for (int part = 0; part < Format::kParts; ++part) {
      unsigned words[kCoreElements / 2];
#pragma unroll
      for (int j = 0; j < kCoreElements / 2; ++j) {
        words[j] = Format::pair(core.values[2 * j], core.values[2 * j + 1], scale, part);
      }
      store_shared(target + (core.place + part * problem.part_cores) * 4, words[0], words[1], words[2],
                   words[3]);
    }
  };

#pragma unroll 1
  for (int image = kWindowed ? part.first_image : 0; image < (kWindowed ? part.end_image : tile.images);
       ++image) {
    const Element* const source =
        problem.x + ((tile.n + image) * problem.in_channels + first_channel) * problem.input_plane;
    unsigned* const target = cores + image * problem.image_cores * 4;
#pragma unroll 1
    for (int item = first_item + warpgroup_thread(); item < items; item += kAtOnce * kWarpgroupThreads) {
      CoreRow<Element> core_rows[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        // The last is loaded again where there are no more, which costs less than to ask again.
        const int one = min(item + i * kWarpgroupThreads, items - 1);
        if (!kWindowed && is_copied) {
          load_copied<kBundle>(problem, copied + image * problem.source_image, places[one], core_rows[i]);
        } else if (asks) {
          load_row<Format, kBundle>(problem, source, first_row, first_column, one, core_rows[i]);
        } else {
          load_inside<kBundle>(problem, source + first_row * problem.input_width + first_column, places[one],
                               core_rows[i]);
        }
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) store(target, core_rows[i]);
    }
  }
  return range;
}

template <typename Format, bool kWindowed, typename Element = typename Format::Element>
__device__ inline ValueRange<Element> stage_tile(const Arguments<Element>& problem, const Tile& tile,
                                                 int first_channel, BinadeWindow window,
                                                 const StagedItem* items, bool is_copied, const Element* raw,
                                                 StagedPart part, unsigned* cores) {
  switch (problem.log2_bundle) {
    case 0:
      return stage_bundles<Format, kWindowed, 1>(problem, tile, first_channel, window, items, is_copied, raw,
                                                 part, cores);
    case 1:
      return stage_bundles<Format, kWindowed, 2>(problem, tile, first_channel, window, items, is_copied, raw,
                                                 part, cores);
    case 2:
      return stage_bundles<Format, kWindowed, 4>(problem, tile, first_channel, window, items, is_copied, raw,
                                                 part, cores);
    default:
      return stage_bundles<Format, kWindowed, 8>(problem, tile, first_channel, window, items, is_copied, raw,
                                                 part, cores);
  }
}

// Asks for the rows of a tile's input, so that they are in the second-level cache when it is staged.
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

// What all threads of the warpgroup have seen.
template <typename Element>
__device__ inline ValueRange<Element> reduce_warpgroup(ValueRange<Element> range, int warpgroup,
                                                       WarpgroupState* state) {
  return reduce_threads(range, *state, warpgroup_thread() == 0, [&] { sync_warpgroup(warpgroup); });
}

}  // namespace convswap::toeplitz
