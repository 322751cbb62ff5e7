#pragma once

// Kernel instances and candidate tilings of toeplitz.

#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "conv/problem.h"
#include "cuda/host/text.h"
#include "cuda/toeplitz/arguments.h"
#include "plan/device.h"

namespace convswap::toeplitz {

struct Instance {
  int tiles;  // accumulator tiles of eight columns
  bool has_epilogue;

  // Template arguments of the kernel.
  std::string arguments() const { return joined(tiles, has_epilogue ? ", true" : ", false"); }
};

inline constexpr int kKernelTiles[] = {2, 4, 6, 8, 10, 12};

inline constexpr auto kInstances = [] {
  std::array<Instance, 2 * std::size(kKernelTiles)> all{};
  std::size_t count = 0;
  for (const int tiles : kKernelTiles) {
    for (const bool has_epilogue : {false, true}) all[count++] = {tiles, has_epilogue};
  }
  return all;
}();

// Decomposition of input and filter into core matrices. toeplitz.cc defines the terms.
struct CoreLayout {
  int bundle;                         // channels interleaved in a core row: 1, 2, 4 or 8
  int pixels;                         // of a core row
  int outputs;                        // neighbouring outputs of a row of the product
  int folds;                          // output rows computed by one row of the product
  int row_phases;                     // planes of input rows
  int column_phases;                  // planes of core columns
  int64_t window_rows, window_cores;  // receptive field of a product row's outputs, for each bundle
  int64_t bundles;

  CoreLayout(const ConvProblem& problem, int bundle, int folds);
  int64_t depth_cores() const { return bundles * window_rows * window_cores; }
  int64_t steps() const { return (depth_cores() + 1) / 2; }  // of two core matrices each
};

// Upper bound of wgmma k-steps per accumulator.
int64_t max_steps(const ConvProblem& problem, const Device& device);

// All layouts with at most max_steps k-steps; empty if there is none.
std::vector<CoreLayout> core_layouts_of(const ConvProblem& problem, const Device& device);

// Work of a block.
struct Tiling {
  CoreLayout core_layout;
  int tiles;  // accumulator tiles of eight columns
  int filters_per_block = 0, filter_blocks = 0;
  int images = 1, rows = 1, cores = 1;  // of a tile: folded rows and core columns
  int warpgroups = 1;
  int64_t tile_count = 0;
  int64_t bands = 1, row_advance = 1, y_rows = 1;
  int64_t overlap = 0;  // rows of the next tile that this tile computes too, to store whole cache lines
  int64_t pitch = 0, core_rows = 0, plane_cores = 0, image_cores = 0, part_cores = 0;
  int64_t cores_per_row = 0, input_rows = 0, image_items = 0;
  int64_t product_rows = 0, chunks = 0;  // of an image
  ResultStrides conv_strides{}, y_strides{};
  SharedOffsets shared{};
  bool copies_input = false;  // TMA loads bring the next tile's input while this tile is computed
  int64_t source_plane = 0, source_image = 0;
  int64_t core_matrix_bytes = 0, raw_bytes = 0;  // of a warpgroup
  int64_t shared_bytes = 0;
  double cost = std::numeric_limits<double>::infinity();  // estimated nanoseconds
};

// The tiling with the lowest estimated cost; empty if none fits into the device's shared memory. The problem
// must have an output, channels, and one or two spatial axes.
std::optional<Tiling> best_tiling(const ConvProblem& problem, const Device& device);

// True if each tile's results of a filter end at a cache-line boundary, for a y that starts at one. The last
// tile is excepted.
bool stores_whole_lines(const ConvProblem& problem, const Tiling& tiling);

// True if no output reads padding and the bundles divide the channels.
bool is_unpadded(const ConvProblem& problem, const CoreLayout& core_layout);

// Sets the core matrices and offsets of each k-step. The last step may have one core matrix; the second
// operand of that step is the one behind it, with zero weights.
void set_step_offsets(const Tiling& tiling, StepCoreMatrices* cores, unsigned* offsets);

// True if a thread and its neighbour hold all accumulators of a window of the problem's pool.
bool pools_accumulators(const ConvProblem& problem, const CoreLayout& core_layout);

// Epilogue work left after the accumulators are written. Clamps (Relu, Clip) are applied while writing.
PostPass post_pass_of(const ConvProblem& problem, const CoreLayout& core_layout);

// True if the Conv output needs float32 memory of its own: a pool reads several results, or the element type
// is narrower than the float32 that the second pass needs.
bool has_separate_conv_output(const ConvProblem& problem, PostPass post_pass);

// Clamp bounds of an activation that only clamps; infinities for all others.
struct Bounds {
  float min, max;
};
Bounds bounds_of(const Epilogue& epilogue);

}  // namespace convswap::toeplitz
