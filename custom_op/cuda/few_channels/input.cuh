#pragma once

// A tile of the output, and what of the input it reads.

#include "cuda/few_channels/arguments.h"
#include "cuda/primitives/cp_async.cuh"
#include "cuda/primitives/registers.cuh"
#include "cuda/primitives/shared_memory.cuh"
#include "cuda/primitives/tensor_core_formats.cuh"

namespace convswap::few_channels {

struct Tile {
  int n, first_row, first_column;  // of the output, rows folded

  template <typename Arguments>
  __device__ Tile(const Arguments& problem, int index) {
    const int band_index = problem.column_tiles.quotient_of_any(index);
    const int image_tile = problem.bands.quotient_of_any(band_index);
    first_column =
        (index - band_index * static_cast<int>(problem.column_tiles.divisor)) * problem.places_quads * kQuad;
    first_row = (band_index - image_tile * static_cast<int>(problem.bands.divisor)) * problem.tile_rows;
    n = image_tile * problem.tile_images;
  }
};

// The part of the input that a tile reads.
struct InputWindow {
  int first_row, first_column;   // may lie in the padding
  int begin_column, end_column;  // inside the image; the end is at least 0, also in the padding

  template <typename Arguments>
  __device__ InputWindow(const Arguments& problem, const Tile& tile) {
    first_row = tile.first_row * problem.folded_stride_height - problem.pad_height;
    first_column = tile.first_column * problem.stride_width - problem.pad_width;
    begin_column = max(0, first_column);
    end_column = max(0, min(problem.input_width, first_column + problem.raw_columns));
  }
};

// What lies side by side in x of the input that a tile reads.
struct Run {
  long long start;  // in x
  int elements;     // 0 where the run lies outside the image or the batch
  int first_row;    // of the tile's input

  // `plane` counts the tile's images and their channels; `row` is the tile's input row that the run holds.
  template <typename Arguments>
  __device__ Run(const Arguments& problem, const Tile& tile, const InputWindow& window, int first_channel,
                 int plane, int row) {
    const int image = problem.channels_divisor.quotient(plane);
    const int channel = first_channel + plane - image * problem.pass_channels;
    const bool is_whole = problem.runs_per_plane == 1;
    first_row = is_whole ? max(0, -window.first_row) : row;
    const int end_row = is_whole ? min(problem.raw_rows, problem.input_height - window.first_row) : row + 1;
    start = ((static_cast<long long>(tile.n + image) * problem.in_channels + channel) * problem.input_height +
             window.first_row + first_row) *
                problem.input_width +
            window.begin_column;
    const bool inside = tile.n + image < problem.batch && window.first_row + first_row >= 0 &&
                        window.first_row + end_row <= problem.input_height && first_row < end_row &&
                        window.begin_column < window.end_column;
    elements =
        !inside ? 0
                : (end_row - first_row - 1) * problem.input_width + window.end_column - window.begin_column;
  }
};

// Finds where each quad of a half tile lies.
template <int kBundle, typename Arguments>
__device__ inline void find_places(const Arguments& problem, QuadPlace* places) {
  const int count = problem.places_images * problem.quads_per_image.divisor;
  for (int i = threadIdx.x; i < count; i += blockDim.x) {
    const int image = problem.quads_per_image.quotient(i);
    const int within = i - image * problem.quads_per_image.divisor;
    const int row = problem.quads_per_row.quotient(within);
    const int column = within - row * problem.quads_per_row.divisor;
    const int word = image * problem.planes * problem.plane_words +
                     row * problem.folded_stride_height * problem.phases * problem.line_words +
                     column * kQuad * kBundle;
    places[i] = {static_cast<unsigned short>(word), static_cast<unsigned short>(column),
                 (image * problem.out_channels * problem.output_height + (row << problem.log2_folds)) *
                         problem.output_width +
                     column * kQuad};
  }
}

// How many quads of a half of the tile lie in the first `all_rows` folded rows; they are the first ones.
template <typename Arguments>
__device__ inline int quads_inside(const Arguments& problem, const Tile& tile, int half, int all_rows) {
  const int images = min(problem.places_images, problem.batch - tile.n - half * problem.half_images);
  const int rows = min(problem.places_rows, all_rows - tile.first_row - half * problem.half_rows);
  if (images <= 0 || rows <= 0) return 0;
  return ((images - 1) * problem.places_rows + rows) * problem.places_quads;
}

// `k` is the block's first filter, folds not counted.
template <typename Arguments>
__device__ inline TileWork work_of(const Arguments& problem, const Tile& tile, int k) {
  const int whole_rows = problem.output_height >> problem.log2_folds;
  const int last_folds = problem.output_height - (whole_rows << problem.log2_folds);
  const long long plane = static_cast<long long>(tile.n) * problem.out_channels + k;
  return {plane * problem.output_plane + (tile.first_row << problem.log2_folds) * problem.output_width +
              tile.first_column,
          {quads_inside(problem, tile, 0, problem.folded_rows),
           quads_inside(problem, tile, 1, problem.folded_rows)},
          {quads_inside(problem, tile, 0, whole_rows), quads_inside(problem, tile, 1, whole_rows)},
          ((1u << last_folds) - 1) * problem.first_folds,
          problem.output_width - tile.first_column};
}

// The way of the input into shared memory: copied as it is, then converted and laid out for the tensor core.

// Starts the copies of a tile's input, a run to a warp or to a few. Each keeps its alignment to 16 bytes, so
// a copied run starts up to a chunk less one into its place.
template <typename Element>
__device__ inline void copy_tile(const Arguments<Element>& problem, const Tile& tile, int first_channel,
                                 Element* raw) {
  constexpr int kChunk = 16 / sizeof(Element);
  const unsigned thread = optimization_barrier(threadIdx.x);
  const InputWindow window(problem, tile);
  const int warps = blockDim.x / 32;
  const int sharers = problem.copy_sharers.divisor;
#pragma unroll 1
  for (int job = thread / 32; job < problem.runs * sharers; job += warps) {
    const int i = problem.copy_sharers.quotient(job);
    const int share = job - i * sharers;
    const int plane = problem.runs_per_plane_divisor.quotient(i);
    const Run run(problem, tile, window, first_channel, plane, i - plane * problem.runs_per_plane);
    if (run.elements == 0) continue;
    const int misaligned = static_cast<int>(run.start & (kChunk - 1));
    const Element* source = problem.x + (run.start - misaligned);
    // What lies beyond the run is copied too, and not used; but nothing lies beyond the tensor.
    const long long left = problem.input_elements - (run.start - misaligned);
    const int end = run.elements + misaligned;
    const int whole = !problem.copies_16_bytes ? 0
                      : left >= end + kChunk   ? end
                                               : static_cast<int>(left) - kChunk + 1;
    Element* target = raw + i * problem.run_elements;
    // A few copies at constant distances, which cost no addresses.
    constexpr int kCopies = 4;
    constexpr int kStep = 32 * kChunk;
#pragma unroll 1
    for (int j = share * kCopies * kStep + thread % 32 * kChunk; j < end; j += sharers * kCopies * kStep) {
      Element* const to = target + j;
      const Element* const from = source + j;
#pragma unroll
      for (int copy = 0; copy < kCopies; ++copy) {
        if (j + copy * kStep < whole) cp_async_16(to + copy * kStep, from + copy * kStep);
      }
    }
    // The last chunk of the tensor, or all of them where x is not aligned.
    const int first = max(whole + kChunk - 1 & ~(kChunk - 1), misaligned);
#pragma unroll 1
    for (int j = first + share * 32 + thread % 32; j < end; j += sharers * 32) target[j] = source[j];
  }
}

// A staged line: where its first column goes, the remainder of its columns by the stride, and for each pixel
// of a bundle, of the first half of the tile and then of the second, where in the raw copy its first column
// is. That may lie before the copy where the line begins in the padding. Behind the copy lies a row of zeros
// for rows in the padding.
template <int kBundle>
struct alignas(16) StagedLine {
  int from[2 * kBundle];
  int target;
  int phase;
  int unused[2];
};

// Whether the lines of one tile are those of another: most blocks meet the same again and again.
template <typename Element>
__device__ inline bool share_lines(const Arguments<Element>& problem, const Tile& tile, const Tile& other) {
  const auto images = [&](int n) { return min(problem.batch - n, problem.tile_images); };
  // Of an image in x, from a boundary of 16 bytes.
  const auto misaligned = [&](int n) {
    return static_cast<unsigned>(n) * problem.in_channels * problem.input_height * problem.input_width %
           (16 / sizeof(Element));
  };
  return tile.first_row == other.first_row && tile.first_column == other.first_column &&
         images(tile.n) == images(other.n) && misaligned(tile.n) == misaligned(other.n);
}

template <int kBundle, typename Element>
__device__ inline void find_lines(const Arguments<Element>& problem, const Tile& tile, int first_channel,
                                  StagedLine<kBundle>* lines) {
  constexpr int kChunk = 16 / sizeof(Element);
  const InputWindow window(problem, tile);
  for (int i = threadIdx.x; i < problem.lines * 2 * kBundle; i += blockDim.x) {
    const int line = i / (2 * kBundle);
    const int half = i / kBundle % 2;
    const int pixel = i % kBundle;
    const int plane = problem.lines_per_plane.quotient(line);
    const int within = line - plane * problem.lines_per_plane.divisor;
    const int half_image = problem.planes_divisor.quotient(plane);
    const int row = problem.phases_divisor.quotient(within);
    const int phase = within - row * problem.phases;
    if (i % (2 * kBundle) == 0) {
      lines[line].target = plane * problem.plane_words + within * problem.line_words;
      lines[line].phase = phase;
    }

    const int channel =
        (plane - half_image * problem.planes) * problem.bundle_channels + pixel % problem.bundle_channels;
    const int raw_row = row + half * problem.half_rows * problem.folded_stride_height +
                        pixel / problem.bundle_channels * problem.row_step;
    const int input_row = window.first_row + raw_row;
    const int shift = phase + window.first_column - window.begin_column;
    int from = problem.raw_words * static_cast<int>(4 / sizeof(Element)) + shift;
    if (channel < problem.pass_channels && raw_row < problem.raw_rows && input_row >= 0 &&
        input_row < problem.input_height) {
      const int raw_plane = (half_image + half * problem.half_images) * problem.pass_channels + channel;
      const Run run(problem, tile, window, first_channel, raw_plane, raw_row);
      if (run.elements > 0) {
        const int index = raw_plane * problem.runs_per_plane + (problem.runs_per_plane == 1 ? 0 : raw_row);
        from = index * problem.run_elements + static_cast<int>(run.start & (kChunk - 1)) +
               (raw_row - run.first_row) * problem.input_width + shift;
      }
    }
    lines[line].from[half * kBundle + pixel] = from;
  }
}

// Converts the input and lays it out in bundles: a thread takes one column of a few lines. Columns of equal
// remainder by the stride lie together, so that neighbouring outputs read neighbouring words. Padding
// becomes zeros, and so does, where `kWindowed`, what lies outside the window of binades. Returns what the
// thread has seen.
template <typename Format, int kBundle, bool kWindowed, typename Arguments>
__device__ inline ValueRange<typename Format::Element> stage_tile(const Arguments& problem, const Tile& tile,
                                                                  const StagedLine<kBundle>* lines,
                                                                  const typename Format::Element* raw,
                                                                  BinadeWindow binades, unsigned* staged) {
  using Element = typename Format::Element;
  constexpr int kLines = 8 / kBundle;
  const InputWindow window(problem, tile);
  const int count = (problem.lines + kLines - 1) / kLines * problem.columns.divisor;
  const float scale = binades.scale();
  ValueRange<Element> range;
#pragma unroll 1
  for (int i = threadIdx.x; i < count; i += blockDim.x) {
    const int group = problem.columns.quotient(i);
    const int column = i - group * problem.columns.divisor;
    const int raw_column = column * problem.stride_width;
    const Element* const source = raw + raw_column;
    unsigned* const target = staged + column * kBundle;
    const int input_column = window.first_column + raw_column;
#pragma unroll
    for (int l = 0; l < kLines; ++l) {
      if (group * kLines + l >= problem.lines) break;
      const StagedLine<kBundle>& line = lines[group * kLines + l];
      const int2 place = *reinterpret_cast<const int2*>(&line.target);
      const bool inside =
          static_cast<unsigned>(input_column + place.y) < static_cast<unsigned>(window.end_column);
      int from[2 * kBundle];
#pragma unroll
      for (int j = 0; j < 2 * kBundle; j += 4) {
        const int4 four = *reinterpret_cast<const int4*>(line.from + j);
        from[j] = four.x, from[j + 1] = four.y, from[j + 2] = four.z, from[j + 3] = four.w;
      }
      Element values[2 * kBundle];
#pragma unroll
      for (int j = 0; j < 2 * kBundle; ++j) {
        values[j] = Format::zero();
        if (inside) values[j] = source[from[j]];
      }
#pragma unroll
      for (int j = 0; j < 2 * kBundle; j += 2) {
        range.include(values[j], values[j + 1]);
        if constexpr (kWindowed) {
          values[j] = binades.holds(values[j]) ? values[j] : Format::zero();
          values[j + 1] = binades.holds(values[j + 1]) ? values[j + 1] : Format::zero();
        }
      }
      // What the tensor core takes of the two halves lies side by side.
#pragma unroll
      for (int part = 0; part < Format::kParts; ++part) {
        unsigned* const words = target + place.x + part * problem.part_words;
        if constexpr (kBundle == 4) {
          store_shared(words, Format::pair(values[0], values[1], scale, part),
                       Format::pair(values[4], values[5], scale, part),
                       Format::pair(values[2], values[3], scale, part),
                       Format::pair(values[6], values[7], scale, part));
        } else {
          store_shared(words, Format::pair(values[0], values[1], scale, part),
                       Format::pair(values[2], values[3], scale, part));
        }
      }
    }
  }
  return range;
}

}  // namespace convswap::few_channels
