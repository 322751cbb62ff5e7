#pragma once

// The kernel instances of implicit_gemm, and the tilings that it chooses among.

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "conv/problem.h"
#include "cuda/implicit_gemm/arguments.h"
#include "plan/device.h"

namespace convswap::implicit_gemm {

struct Instance {
  int tiles;  // of eight columns, of a product

  // As the kernel's template takes them.
  std::string arguments() const { return std::to_string(tiles); }
};

inline constexpr Instance kInstances[] = {{kFewerTiles}, {kMostTiles}};

// What a block of the kernel does.
struct Tiling {
  int folds = 1;            // neighbouring output rows of a column of the product
  int filters = 0;          // of a block
  int filter_blocks = 1;    // of a group
  int64_t chunks = 0;       // of channels
  int64_t bundles = 0;      // of eight channels, the last perhaps of four of two pixels
  int64_t half_chunk = -1;  // the chunk in such a bundle
  bool pairs_rows = false;  // these two lie below each other, not side by side
  int64_t row_phases = 1, column_phases = 1;
  std::vector<HalfStep> half_steps;                     // two for each step
  int64_t groups = 0;                                   // of folded output rows
  int64_t pitch = 0, plane_rows = 0, plane_places = 0;  // of one row phase and column phase
  int64_t bundle_places = 0, part_places = 0, slot_places = 0;
  int tiles = kMostTiles;     // of eight columns, of a product
  int64_t output_chunks = 0;  // of columns()
  int stages = 2;
  int64_t stage_bytes = 0;
  int buffers = 1;         // of an image's results
  int late_filters = 0;    // the last ones, whose results have a second place where there is one buffer
  int64_t late_bytes = 0;  // from their first place to the second
  int64_t buffer_bytes = 0;
  std::array<RowOwner, kRows> owners{};
  int bank_turns = 0;         // that the banks of shared memory take for a result of each row
  int64_t results_bytes = 0;  // of all
  int64_t shared_steps = 0;   // whose weights lie in shared memory
  SharedOffsets shared{};
  int64_t shared_bytes = 0;
  double cost = std::numeric_limits<double>::infinity();  // nanoseconds, estimated

  int64_t columns() const { return int64_t{tiles} * kTileColumns; }
  int64_t steps() const { return static_cast<int64_t>(half_steps.size()) / 2; }
  int64_t steps_held() const { return std::min<int64_t>(steps(), kHeldSteps); }
  // From an output's place to that of what a half step takes for it.
  int64_t place_of(const HalfStep& half) const;
};

// The cheapest tiling by estimate; empty where none fits into the device's shared memory. The problem must
// have an output, channels, and one or two spatial axes.
std::optional<Tiling> best_tiling(const ConvProblem& problem, const Device& device);

// Whether neighbouring results may be written as one, where an image's first is aligned to two.
bool writes_pairs(const ConvProblem& problem, const Tiling& tiling);

// The fewest products of the tensor core that a sum can take, or less where none of its folds fits, and how
// many it may.
int64_t fewest_steps(const ConvProblem& problem, const Device& device);
int64_t most_steps(const ConvProblem& problem, const Device& device);

}  // namespace convswap::implicit_gemm
