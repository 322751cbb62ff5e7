#pragma once

// Kernel instances and candidate tilings of toeplitz.

#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <string>
#include <vector>

#include "conv/problem.h"
#include "cuda/host/candidates.h"
#include "cuda/host/text.h"
#include "cuda/toeplitz/arguments.h"
#include "plan/device.h"

namespace convswap::toeplitz {

struct Instance {
  int accumulator_tiles;  // of eight matrix columns
  bool has_epilogue;

  // Template arguments of the kernel.
  std::string arguments() const { return joined(accumulator_tiles, has_epilogue ? ", true" : ", false"); }
};

inline constexpr int kKernelAccumulatorTiles[] = {2, 4, 6, 8, 10, 12};

inline constexpr auto kInstances = [] {
  std::array<Instance, 2 * std::size(kKernelAccumulatorTiles)> all{};
  std::size_t count = 0;
  for (const int accumulator_tiles : kKernelAccumulatorTiles) {
    for (const bool has_epilogue : {false, true}) all[count++] = {accumulator_tiles, has_epilogue};
  }
  return all;
}();

// Decomposition of input and filter into vectors. toeplitz.cc defines the terms.
struct VectorLayout {
  int bundle;                           // channels interleaved in a vector: 1, 2, 4 or 8
  int pixels;                           // of a vector and channel
  int outputs;                          // of a span
  int folds;                            // output rows computed by one row of the product
  int row_stride_phases;                // input rows that a folded row advances
  int column_stride_phases;             // input vectors that a span advances
  int64_t window_rows, window_vectors;  // window (receptive field) of a product row, for each bundle
  int64_t bundles;

  VectorLayout(const ConvProblem& problem, int bundle, int folds);
  int64_t k_vectors() const { return bundles * window_rows * window_vectors; }
  int64_t steps() const { return (k_vectors() + 1) / 2; }  // k-steps of two vectors each
};

// Upper bound of wgmma k-steps per accumulator.
int64_t max_steps(const ConvProblem& problem, const Device& device);

// All layouts with at most max_steps k-steps; empty if there is none.
std::vector<VectorLayout> vector_layouts_of(const ConvProblem& problem, const Device& device);

// Work of a block.
struct Tiling {
  VectorLayout vector_layout;
  int accumulator_tiles;  // of eight matrix columns
  int filters_per_pass = 0, filter_passes = 0;
  int images = 1, rows = 1, spans = 1;  // of an output tile: images, folded rows and spans per row
  int warpgroups = 1;
  int64_t tile_count = 0;
  int64_t row_tiles = 1, row_advance = 1, y_rows = 1;
  int64_t overlap = 0;  // rows of the next output tile computed here too, to store whole cache lines
  int64_t pitch = 0, plane_rows = 0, plane_vectors = 0, image_vectors = 0, part_vectors = 0;
  int64_t vectors_per_row = 0, input_rows = 0, image_items = 0;
  int64_t product_rows = 0, m_tiles = 0;  // rows of the product for an image, and wgmmas along them
  ResultStrides conv_strides{}, y_strides{};
  SharedOffsets shared{};
  bool loads_input_by_tma = false;  // TMA loads the next output tile's input while one is computed
  int64_t source_channel_stride = 0, source_image_stride = 0;
  int64_t staged_input_bytes = 0, raw_bytes = 0;  // of a warpgroup
  int64_t shared_bytes = 0;
  double cost = std::numeric_limits<double>::infinity();  // estimated nanoseconds

  // Names the tiling among those of a problem.
  std::string key() const {
    return joined("bundle ", vector_layout.bundle, " folds ", vector_layout.folds, " tiles ",
                  accumulator_tiles, " warpgroups ", warpgroups, " tile ", images, "x", rows, "x", spans,
                  " overlap ", overlap, loads_input_by_tma ? " tma" : "");
  }
};

// Estimated nanoseconds of a tiling.
double cost_of(const ConvProblem& problem, const Device& device, const Tiling& tiling);

// Adds all tilings that fit into the device's shared memory. The problem must have an output, channels, and
// one or two spatial axes.
void search(const ConvProblem& problem, const Device& device, Candidates<Tiling>& found);

// True if the results of a filter in each output tile but the last end at a cache-line boundary, for a y that
// starts at one.
bool stores_whole_lines(const ConvProblem& problem, const Tiling& tiling);

// True if no output reads padding and the bundles divide the channels.
bool is_unpadded(const ConvProblem& problem, const VectorLayout& vector_layout);

// Sets the vectors and offsets of each k-step. The last step may have only one vector. Its second vector is
// then the next one in the staged input, which is multiplied by zeros.
void set_step_offsets(const Tiling& tiling, StepVectors* vectors, unsigned* offsets);

// True if a thread, or a thread and its partner, holds all accumulators of a pool window.
bool pools_accumulators(const ConvProblem& problem, const VectorLayout& vector_layout);

// Epilogue work left after the accumulators are written. Clamps (Relu, Clip) are applied while writing.
PostPass post_pass_of(const ConvProblem& problem, const VectorLayout& vector_layout);

// True if the Conv output needs float32 memory of its own: a pool reads several results, or the element type
// is narrower than the float32 that the second pass needs.
bool has_separate_conv_output(const ConvProblem& problem, PostPass post_pass);

// Clamp bounds of an activation that only clamps; infinities for all others.
struct Bounds {
  float min, max;
};
Bounds bounds_of(const Epilogue& epilogue);

}  // namespace convswap::toeplitz
