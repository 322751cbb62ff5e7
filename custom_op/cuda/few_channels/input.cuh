#pragma once

// An output tile, and the copy and conversion of its input.

#include "cuda/few_channels/arguments.h"
#include "cuda/primitives/cp_async.cuh"
#include "cuda/primitives/registers.cuh"
#include "cuda/primitives/shared_memory.cuh"
#include "cuda/primitives/tensor_core_formats.cuh"

namespace convswap::few_channels {

struct Tile {
  int n, first_row, first_column;  // of the output; rows are folded

  template <typename Arguments>
  __device__ Tile(const Arguments& problem, int index) {
    const int row_tile_index = problem.column_tiles.quotient_of_any(index);
    const int image_tile = problem.row_tiles.quotient_of_any(row_tile_index);
    first_column = (index - row_tile_index * static_cast<int>(problem.column_tiles.divisor)) *
                   problem.quads_per_half_row * kQuad;
    first_row =
        (row_tile_index - image_tile * static_cast<int>(problem.row_tiles.divisor)) * problem.tile_rows;
    n = image_tile * problem.tile_images;
  }
};

// Input that a tile reads.
struct TileInput {
  int first_row, first_column;   // may lie in the padding
  int begin_column, end_column;  // inside the image; the end is at least 0, also in the padding

  template <typename Arguments>
  __device__ TileInput(const Arguments& problem, const Tile& tile) {
    first_row = tile.first_row * problem.folded_stride_height - problem.pad_height;
    first_column = tile.first_column * problem.stride_width - problem.pad_width;
    begin_column = max(0, first_column);
    end_column = max(0, min(problem.input_width, first_column + problem.raw_columns));
  }
};

// Input of a tile that is contiguous in x.
struct Run {
  long long start;  // index in x
  int elements;     // 0 if the run lies outside the image or the batch
  int first_row;    // row of the tile's input

  // `plane` counts the tile's images and their channels; `row` is the tile's input row that the run holds.
  template <typename Arguments>
  __device__ Run(const Arguments& problem, const Tile& tile, const TileInput& tile_input, int first_channel,
                 int plane, int row) {
    const int image = problem.channels_divisor.quotient(plane);
    const int channel = first_channel + plane - image * problem.pass_channels;
    const bool is_whole = problem.runs_per_plane == 1;
    first_row = is_whole ? max(0, -tile_input.first_row) : row;
    const int end_row =
        is_whole ? min(problem.raw_rows, problem.input_height - tile_input.first_row) : row + 1;
    start = ((static_cast<long long>(tile.n + image) * problem.in_channels + channel) * problem.input_height +
             tile_input.first_row + first_row) *
                problem.input_width +
            tile_input.begin_column;
    const bool inside = tile.n + image < problem.batch && tile_input.first_row + first_row >= 0 &&
                        tile_input.first_row + end_row <= problem.input_height && first_row < end_row &&
                        tile_input.begin_column < tile_input.end_column;
    elements = !inside ? 0
                       : (end_row - first_row - 1) * problem.input_width + tile_input.end_column -
                             tile_input.begin_column;
  }
};

// Index in y of filter k at a row and a column of image n.
template <bool kNhwc, typename Arguments>
__device__ inline long long y_index(const Arguments& problem, long long n, int k, int row, int column) {
  if constexpr (kNhwc) {
    return ((n * problem.output_height + row) * problem.output_width + column) * problem.out_channels + k;
  } else {
    return ((n * problem.out_channels + k) * problem.output_height + row) * problem.output_width + column;
  }
}

// Sets the offsets of each quad of a half tile.
template <int kBundle, bool kNhwc, typename Arguments>
__device__ inline void find_quad_offsets(const Arguments& problem, QuadOffsets* quad_offsets) {
  const int count = problem.images_per_half * problem.quads_per_image.divisor;
  for (int i = threadIdx.x; i < count; i += blockDim.x) {
    const int image = problem.quads_per_image.quotient(i);
    const int within = i - image * problem.quads_per_image.divisor;
    const int row = problem.quads_per_row.quotient(within);
    const int column = within - row * problem.quads_per_row.divisor;
    const int word = image * problem.channel_blocks * problem.channel_block_words +
                     row * problem.folded_stride_height * problem.stride_phases * problem.line_words +
                     column * kQuad * kBundle;
    quad_offsets[i] = {
        static_cast<unsigned short>(word), static_cast<unsigned short>(column),
        static_cast<int>(y_index<kNhwc>(problem, image, 0, row << problem.log2_folds, column * kQuad))};
  }
}

// Number of quads of a half of the tile that lie in the first `all_rows` folded rows of the output. Those
// quads come first.
template <typename Arguments>
__device__ inline int quads_inside(const Arguments& problem, const Tile& tile, int half, int all_rows) {
  const int images = min(problem.images_per_half, problem.batch - tile.n - half * problem.half_images);
  const int rows = min(problem.rows_per_half, all_rows - tile.first_row - half * problem.half_rows);
  if (images <= 0 || rows <= 0) return 0;
  return ((images - 1) * problem.rows_per_half + rows) * problem.quads_per_half_row;
}

// `k` is the block's first filter, folds not counted.
template <bool kNhwc, typename Arguments>
__device__ inline TileInfo tile_info_of(const Arguments& problem, const Tile& tile, int k) {
  const int full_rows = problem.output_height >> problem.log2_folds;
  const int partial_folds = problem.output_height - (full_rows << problem.log2_folds);
  return {y_index<kNhwc>(problem, tile.n, k, tile.first_row << problem.log2_folds, tile.first_column),
          {quads_inside(problem, tile, 0, problem.folded_rows),
           quads_inside(problem, tile, 1, problem.folded_rows)},
          {quads_inside(problem, tile, 0, full_rows), quads_inside(problem, tile, 1, full_rows)},
          ((1u << partial_folds) - 1) * problem.first_fold_mask,
          problem.output_width - tile.first_column};
}

// Starts the asynchronous copies of a tile's input, one run per warp or per few warps. Each run keeps its
// misalignment to 16 bytes, so it starts up to kCpAsyncElements - 1 elements into its buffer.
template <typename Element>
__device__ inline void copy_tile(const Arguments<Element>& problem, const Tile& tile, int first_channel,
                                 Element* raw) {
  constexpr int kCpAsyncElements = 16 / sizeof(Element);
  const unsigned thread = optimization_barrier(threadIdx.x);
  const TileInput tile_input(problem, tile);
  const int warps = blockDim.x / 32;
  const int warps_per_run = problem.warps_per_run.divisor;
#pragma unroll 1
  for (int job = thread / 32; job < problem.runs * warps_per_run; job += warps) {
    const int i = problem.warps_per_run.quotient(job);
    const int warp_in_run = job - i * warps_per_run;
    const int plane = problem.runs_per_plane_divisor.quotient(i);
    const Run run(problem, tile, tile_input, first_channel, plane, i - plane * problem.runs_per_plane);
    if (run.elements == 0) continue;
    const int misaligned = static_cast<int>(run.start & (kCpAsyncElements - 1));
    const Element* source = problem.x + (run.start - misaligned);
    // 16-byte copies may reach beyond the run, but not beyond the tensor.
    const long long remaining = problem.input_elements - (run.start - misaligned);
    const int end = run.elements + misaligned;
    const int cp_async_end = !problem.copies_16_bytes ? 0
                             : remaining >= end + kCpAsyncElements
                                 ? end
                                 : static_cast<int>(remaining) - kCpAsyncElements + 1;
    Element* target = raw + i * problem.run_elements;
    // Copies at constant distances need no address arithmetic.
    constexpr int kCopies = 4;
    constexpr int kStep = 32 * kCpAsyncElements;
#pragma unroll 1
    for (int j = warp_in_run * kCopies * kStep + thread % 32 * kCpAsyncElements; j < end;
         j += warps_per_run * kCopies * kStep) {
      Element* const to = target + j;
      const Element* const from = source + j;
#pragma unroll
      for (int copy = 0; copy < kCopies; ++copy) {
        if (j + copy * kStep < cp_async_end) cp_async_16(to + copy * kStep, from + copy * kStep);
      }
    }
    // The tensor's last elements are copied one by one if they do not fill 16 bytes; all are if x is not
    // aligned.
    const int first = max(cp_async_end + kCpAsyncElements - 1 & ~(kCpAsyncElements - 1), misaligned);
#pragma unroll 1
    for (int j = first + warp_in_run * 32 + thread % 32; j < end; j += warps_per_run * 32)
      target[j] = source[j];
  }
}

// A staged line: the target of its first column, its stride phase, and the source of its first column in the
// raw input for each pixel of a bundle, of the first half of the tile and then of the second. A source may
// lie before the raw input if the line begins in the padding. Rows in the padding read a row of zeros behind
// the raw input.
template <int kBundle>
struct alignas(16) StagedLine {
  int source_offsets[2 * kBundle];
  int target;
  int stride_phase;
  int unused[2];
};

// True if two tiles have the same staged lines, as most consecutive tiles of a block do.
template <typename Element>
__device__ inline bool have_same_lines(const Arguments<Element>& problem, const Tile& tile,
                                       const Tile& other) {
  const auto images = [&](int n) { return min(problem.batch - n, problem.tile_images); };
  // Number of elements from the preceding 16-byte boundary to the start of image n in x.
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
  constexpr int kCpAsyncElements = 16 / sizeof(Element);
  const TileInput tile_input(problem, tile);
  for (int i = threadIdx.x; i < problem.lines * 2 * kBundle; i += blockDim.x) {
    const int line = i / (2 * kBundle);
    const int half = i / kBundle % 2;
    const int pixel = i % kBundle;
    const int block = problem.lines_per_channel_block.quotient(line);
    const int within = line - block * problem.lines_per_channel_block.divisor;
    const int half_image = problem.channel_blocks_divisor.quotient(block);
    const int row = problem.stride_phases_divisor.quotient(within);
    const int stride_phase = within - row * problem.stride_phases;
    if (i % (2 * kBundle) == 0) {
      lines[line].target = block * problem.channel_block_words + within * problem.line_words;
      lines[line].stride_phase = stride_phase;
    }

    const int channel = (block - half_image * problem.channel_blocks) * problem.bundle_channels +
                        pixel % problem.bundle_channels;
    const int raw_row = row + half * problem.half_rows * problem.folded_stride_height +
                        pixel / problem.bundle_channels * problem.row_step;
    const int input_row = tile_input.first_row + raw_row;
    const int shift = stride_phase + tile_input.first_column - tile_input.begin_column;
    int from = problem.raw_words * static_cast<int>(4 / sizeof(Element)) + shift;
    if (channel < problem.pass_channels && raw_row < problem.raw_rows && input_row >= 0 &&
        input_row < problem.input_height) {
      const int raw_plane = (half_image + half * problem.half_images) * problem.pass_channels + channel;
      const Run run(problem, tile, tile_input, first_channel, raw_plane, raw_row);
      if (run.elements > 0) {
        const int index = raw_plane * problem.runs_per_plane + (problem.runs_per_plane == 1 ? 0 : raw_row);
        from = index * problem.run_elements + static_cast<int>(run.start & (kCpAsyncElements - 1)) +
               (raw_row - run.first_row) * problem.input_width + shift;
      }
    }
    lines[line].source_offsets[half * kBundle + pixel] = from;
  }
}

// Converts the input and stores it in bundles: a thread converts one column of a few lines. Columns of the
// same stride phase are contiguous, so that neighbouring outputs read neighbouring words. Padding becomes
// zero and, with kWindowed, so do values outside the binade window. Returns the value range that
// the thread has read.
template <typename Format, int kBundle, bool kWindowed, typename Arguments>
__device__ inline ValueRange<typename Format::Element> stage_tile(const Arguments& problem, const Tile& tile,
                                                                  const StagedLine<kBundle>* lines,
                                                                  const typename Format::Element* raw,
                                                                  BinadeWindow binades, unsigned* staged) {
  using Element = typename Format::Element;
  constexpr int kLines = 8 / kBundle;
  const TileInput tile_input(problem, tile);
  const int count = (problem.lines + kLines - 1) / kLines * problem.columns.divisor;
  const float scale = binades.scale();
  ValueRange<Element> range;
#pragma unroll 1
  for (int i = threadIdx.x; i < count; i += blockDim.x) {
    const int line_block = problem.columns.quotient(i);
    const int column = i - line_block * problem.columns.divisor;
    const int raw_column = column * problem.stride_width;
    const Element* const source = raw + raw_column;
    unsigned* const target = staged + column * kBundle;
    const int input_column = tile_input.first_column + raw_column;
#pragma unroll
    for (int l = 0; l < kLines; ++l) {
      if (line_block * kLines + l >= problem.lines) break;
      const StagedLine<kBundle>& line = lines[line_block * kLines + l];
      const int2 target_and_stride_phase = *reinterpret_cast<const int2*>(&line.target);
      const bool inside = static_cast<unsigned>(input_column + target_and_stride_phase.y) <
                          static_cast<unsigned>(tile_input.end_column);
      int source_offsets[2 * kBundle];
#pragma unroll
      for (int j = 0; j < 2 * kBundle; j += 4) {
        const int4 four = *reinterpret_cast<const int4*>(line.source_offsets + j);
        source_offsets[j] = four.x, source_offsets[j + 1] = four.y, source_offsets[j + 2] = four.z,
        source_offsets[j + 3] = four.w;
      }
      Element values[2 * kBundle];
#pragma unroll
      for (int j = 0; j < 2 * kBundle; ++j) {
        values[j] = Format::zero();
        if (inside) values[j] = source[source_offsets[j]];
      }
#pragma unroll
      for (int j = 0; j < 2 * kBundle; j += 2) {
        range.include(values[j], values[j + 1]);
        if constexpr (kWindowed) {
          values[j] = binades.holds(values[j]) ? values[j] : Format::zero();
          values[j + 1] = binades.holds(values[j + 1]) ? values[j + 1] : Format::zero();
        }
      }
      // Words of the two halves alternate, in the order of the mma's A registers.
#pragma unroll
      for (int part = 0; part < Format::kParts; ++part) {
        unsigned* const words = target + target_and_stride_phase.x + part * problem.part_words;
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
