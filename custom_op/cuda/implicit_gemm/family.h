#pragma once

// Kernel instances and tilings of implicit_gemm.

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "conv/problem.h"
#include "cuda/host/candidates.h"
#include "cuda/host/text.h"
#include "cuda/implicit_gemm/arguments.h"
#include "plan/device.h"

namespace convswap::implicit_gemm {

struct Instance {
  int tiles;  // N of a wgmma divided by eight

  // Template arguments of the kernel.
  std::string arguments() const { return std::to_string(tiles); }
};

inline constexpr Instance kInstances[] = {{kFewerTiles}, {kMaxTiles}};

// Folds, filters, tile sizes and buffers, with everything that follows from them.
struct Tiling {
  int folds = 1;               // neighbouring output rows that one column of the GEMM computes
  int filters = 0;             // filters of a block
  int filter_blocks = 1;       // blocks of filters in a group
  int64_t chunks = 0;          // chunks of four channels
  int64_t channel_blocks = 0;  // blocks of eight channels; the last may have four channels of two pixels
  int64_t half_chunk = -1;     // the chunk of such a half-filled channel block
  bool pairs_rows = false;     // its two pixels are in neighbouring rows, not columns
  int64_t row_phases = 1, column_phases = 1;
  std::vector<HalfStep> half_steps;                      // two for each step
  int64_t folded_rows = 0;                               // output rows divided by folds
  int64_t pitch = 0, plane_rows = 0, plane_vectors = 0;  // size of a phase, a plane of rows and columns
  int64_t channel_block_vectors = 0, part_vectors = 0, slot_vectors = 0;
  int tiles = kMaxTiles;     // N of a wgmma divided by eight
  int64_t output_tiles = 0;  // tiles of columns() positions
  int stages = 2;
  int64_t stage_bytes = 0;
  int buffers = 1;                   // results of an image
  int double_buffered_filters = 0;   // last filters, with a second result buffer even if `buffers` is 1
  int64_t second_buffer_offset = 0;  // distance of their two buffers
  int64_t buffer_bytes = 0;
  std::array<RowMapping, kWgmmaM> row_mapping{};
  int bank_cycles = 0;        // cycles to store one result of each row to shared memory, with bank conflicts
  int64_t results_bytes = 0;  // all buffers
  int64_t shared_steps = 0;   // steps whose weights lie in shared memory
  SharedOffsets shared{};
  int64_t shared_bytes = 0;
  double cost = std::numeric_limits<double>::infinity();  // nanoseconds, estimated

  int64_t columns() const { return int64_t{tiles} * kTileColumns; }
  int64_t k_steps() const { return static_cast<int64_t>(half_steps.size()) / 2; }
  int64_t register_steps() const { return std::min<int64_t>(k_steps(), kRegisterSteps); }
  // Offset from an output's vector to the vector that a half step reads for it.
  int64_t offset_of(const HalfStep& half) const;

  // Names the tiling among those of a problem.
  std::string key() const {
    return joined("folds ", folds, pairs_rows ? " rows" : "", " tiles ", tiles, " stages ", stages,
                  " buffers ", buffers);
  }
};

// The estimated time of a tiling in nanoseconds.
double cost_of(const ConvProblem& problem, const Device& device, const Tiling& tiling);

// Adds all tilings that fit into the device's shared memory. The problem must have an output, channels, and
// one or two spatial axes.
void search(const ConvProblem& problem, const Device& device, Candidates<Tiling>& found);

// True if two adjacent results may be one store, given that an image's first result is aligned to two.
bool writes_pairs(const ConvProblem& problem, const Tiling& tiling);

// Least number of wgmmas that a sum takes, or a lower bound of it if no tiling with folds fits; and the most
// that a sum may take.
int64_t min_steps(const ConvProblem& problem, const Device& device);
int64_t max_steps(const ConvProblem& problem, const Device& device);

}  // namespace convswap::implicit_gemm
