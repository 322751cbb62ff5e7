#pragma once

// A tile of the output, and what of the input it reads.

#include "cuda/few_channels/arguments.h"

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

}  // namespace convswap::few_channels
