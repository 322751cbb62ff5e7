#pragma once

#include <cstdint>
#include <limits>
#include <optional>

#include "conv/problem.h"
#include "cuda/toeplitz/layout.h"
#include "plan/device.h"

namespace convswap::toeplitz {

// How input and filter are cut into cores; toeplitz.cc explains the words.
struct Cut {
  int bundle;         // channels side by side: 1, 2, 4 or 8
  int pixels;         // of a core's row
  int outputs;        // neighbours in y for a core's row
  int folds;          // neighbouring output rows for a row of the product
  int row_phases;     // planes of input rows
  int column_phases;  // planes of core columns
  int64_t window_rows, window_cores;  // that the outputs of a core's row read, for each bundle
  int64_t bundles;

  Cut(const ConvProblem& problem, int bundle, int folds);
  int64_t row_cores() const { return bundles * window_cores; }
  int64_t row_steps() const { return (row_cores() + 1) / 2; }
  int64_t steps() const { return window_rows * row_steps(); }
};

// What a block of the kernel does.
struct Tiling {
  Cut cut;
  int tiles;  // of eight columns of the product in a thread's registers
  int filters_per_block, filter_blocks;
  int strip = 1;                        // folded rows of sums that a thread holds
  int images = 1, rows = 1, cores = 1;  // of a tile: folded rows, and core rows along the width
  int teams = 1;
  int64_t tile_count = 0;
  int64_t pitch = 0, plane_cores = 0, image_cores = 0, part_cores = 0;
  int64_t cores_per_row = 0, input_rows = 0, image_items = 0;
  int64_t product_rows = 0, chunks = 0;  // of an image
  ResultPlaces results{};
  SharedOffsets shared{};
  int64_t cores_bytes = 0;  // of a team
  int64_t shared_bytes = 0;
  double cost = std::numeric_limits<double>::infinity();  // clock cycles, estimated
};

// The cheapest tiling by estimate; empty where none fits into the device's shared memory. The problem must
// have an output, channels, and one or two spatial axes.
std::optional<Tiling> best_tiling(const ConvProblem& problem, const Device& device);

// Fills in where the two cores of each step of the window's first row lie in the staged input. The last step
// may have one core only; the second, whose weights are zeros, is then the first again.
void place_row(const Tiling& tiling, unsigned short (*places)[2]);

// Into how many parts each number is split for the tensor core, and how many products of them count.
int parts_of(const ConvProblem& problem);
int terms_of(const ConvProblem& problem);

}  // namespace convswap::toeplitz
