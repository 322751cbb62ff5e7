#pragma once

// The kernel instances of toeplitz, and the tilings that it chooses among.

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
  int tiles;      // of eight columns of the product in a thread's registers
  bool finishes;  // something follows the convolution

  // As the kernel's template takes them.
  std::string arguments() const { return joined(tiles, finishes ? ", true" : ", false"); }
};

inline constexpr int kKernelTiles[] = {2, 4, 6, 8, 10, 12};

inline constexpr auto kInstances = [] {
  std::array<Instance, 2 * std::size(kKernelTiles)> all{};
  std::size_t count = 0;
  for (const int tiles : kKernelTiles) {
    for (const bool finishes : {false, true}) all[count++] = {tiles, finishes};
  }
  return all;
}();

// How input and filter are cut into cores; toeplitz.cc explains the words.
struct Cut {
  int bundle;                         // channels side by side: 1, 2, 4 or 8
  int pixels;                         // of a core's row
  int outputs;                        // neighbours in y for a core's row
  int folds;                          // neighbouring output rows for a row of the product
  int row_phases;                     // planes of input rows
  int column_phases;                  // planes of core columns
  int64_t window_rows, window_cores;  // that the outputs of a core's row read, for each bundle
  int64_t bundles;

  Cut(const ConvProblem& problem, int bundle, int folds);
  int64_t depth_cores() const { return bundles * window_rows * window_cores; }
  int64_t steps() const { return (depth_cores() + 1) / 2; }  // of two cores each
};

// How many products of the tensor core a sum may take.
int64_t most_steps(const ConvProblem& problem, const Device& device);

// All whose sums take no more; none where each would.
std::vector<Cut> cuts_of(const ConvProblem& problem, const Device& device);

// What a block of the kernel does.
struct Tiling {
  Cut cut;
  int tiles;  // of eight columns of the product in a thread's registers
  int filters_per_block = 0, filter_blocks = 0;
  int images = 1, rows = 1, cores = 1;  // of a tile: folded rows, and core rows along the width
  int warpgroups = 1;
  int64_t tile_count = 0;
  int64_t bands = 1, row_advance = 1, y_rows = 1;
  int64_t overlap = 0;  // rows of the next tile that are computed too, so that lines are stored whole
  int64_t pitch = 0, core_rows = 0, plane_cores = 0, image_cores = 0, part_cores = 0;
  int64_t cores_per_row = 0, input_rows = 0, image_items = 0;
  int64_t product_rows = 0, chunks = 0;  // of an image
  ResultPlaces results{}, stored{};
  SharedOffsets shared{};
  bool copies_input = false;  // a tile's input comes by copies while the one before it is multiplied
  int64_t source_plane = 0, source_image = 0;
  int64_t cores_bytes = 0, raw_bytes = 0;  // of a warpgroup
  int64_t shared_bytes = 0;
  double cost = std::numeric_limits<double>::infinity();  // nanoseconds, estimated
};

// The cheapest tiling by estimate; empty where none fits into the device's shared memory. The problem must
// have an output, channels, and one or two spatial axes.
std::optional<Tiling> best_tiling(const ConvProblem& problem, const Device& device);

// Whether a tile's results of a filter end where a line of the cache does, in a y that begins with one. The
// last tile's need not.
bool stores_whole_lines(const ConvProblem& problem, const Tiling& tiling);

// Whether no output reads beyond the image, and no core's row beyond the channels.
bool is_unpadded(const ConvProblem& problem, const Cut& cut);

// Fills in what each step multiplies. The last may have one core only, which the one behind it then follows;
// its weights are zeros.
void place_steps(const Tiling& tiling, StepCores* cores, unsigned* places);

// Whether the sums that a thread and its neighbour have are a window of the problem's pool.
bool pools_sums(const ConvProblem& problem, const Cut& cut);

// What is left when the sums are written. Bounds of the results, such as Relu's, are not.
Finish finish_of(const ConvProblem& problem, const Cut& cut);

// Whether what is written of the sums waits apart from what goes to y, as float32: where a pool takes several
// results or the element type is shorter than what is left to compute with.
bool lies_apart(const ConvProblem& problem, Finish finish);

// The least and the most that an activation leaves of its results where it does nothing else; infinities
// where it does.
struct Bounds {
  float least, most;
};
Bounds bounds_of(const Epilogue& epilogue);

}  // namespace convswap::toeplitz
