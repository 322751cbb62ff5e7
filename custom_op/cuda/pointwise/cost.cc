// Estimates the times of pointwise's tilings.

#include <algorithm>
#include <cmath>

#include "conv/arithmetic.h"
#include "cuda/costs/cost_table.h"
#include "cuda/host/candidates.h"
#include "cuda/host/estimate.h"
#include "cuda/pointwise/family.h"

namespace convswap::pointwise {
namespace {

constexpr int64_t kSectorBytes = 32;  // of memory

// Blocks that the shared memory of a multiprocessor holds.
int64_t blocks_that_fit(const Tiling& tiling, const Device& device) {
  constexpr int64_t kReserved = 1024;  // bytes per block, for the system
  return std::max<int64_t>(1, device.shared_memory_per_multiprocessor / (tiling.shared_bytes + kReserved));
}

// Blocks of a multiprocessor that run side by side.
int64_t resident_blocks(const Tiling& tiling, const Device& device) {
  constexpr int64_t kMost = 4;
  return tiling.instance.warpgroups == 1 ? std::min(kMost, blocks_that_fit(tiling, device)) : 1;
}

// Bytes of the sectors of the input that outputs need. Rows begin and end inside of sectors.
double input_bytes_read(const ConvProblem& problem) {
  const int64_t element_bytes = bytes_per_element(problem.type);
  int64_t plane_bytes = problem.input_size() * element_bytes;
  if (problem.output != problem.input) {
    const int64_t step_bytes = std::max(kSectorBytes, problem.stride[2] * element_bytes);
    const int64_t row_bytes =
        std::min(problem.input[2] * element_bytes, problem.output[2] * step_bytes) + kSectorBytes;
    plane_bytes = std::min(plane_bytes, problem.output[0] * problem.output[1] * row_bytes);
  }
  return to_double(problem.batch * problem.in_channels * plane_bytes);
}

// Bytes of all sectors that a warp stores to, relative to its results. If planes have an odd size, eight
// adjacent results begin anywhere in a sector.
double stored_sectors(int element_bytes) {
  const int bytes = 8 * element_bytes;
  return to_double(kSectorBytes + bytes - element_bytes) / bytes;
}

// True if the accumulators of a tile and the two chunks of its pipeline exceed a thread's registers.
bool spills(const Instance& instance) {
  constexpr int kRegisters = 1 << 16, kOthers = 40;
  const int accumulators = 4 * instance.tiles, chunk = 4 * instance.steps;
  return accumulators + (instance.stages > 0 ? chunk : 2 * chunk) + kOthers >
         kRegisters / (128 * instance.warpgroups);
}

}  // namespace

// The time is a norm of four times: the instructions of a multiprocessor's warpgroups, the latency of a
// warpgroup's tiles, the input's way from L2 to a multiprocessor, and memory.
double cost_of(const ConvProblem& problem, const Device& device, const Tiling& tiling) {
  const auto& costs = costs_of(device).pointwise;
  const Instance& instance = tiling.instance;
  const Epilogue& epilogue = problem.epilogue;
  const int element_bytes = static_cast<int>(bytes_per_element(problem.type));
  const double multiprocessors = std::max(1, device.multiprocessors);
  const bool stores_pairs = problem.output_size() % 2 == 0;
  const bool loads_pairs = stores_pairs && problem.output == problem.input;
  const double grid = to_double(tiling.grid_columns * problem.group * tiling.filter_blocks) / multiprocessors;
  const double blocks = std::ceil(grid), resident = to_double(resident_blocks(tiling, device));
  const double waves = std::ceil(blocks / resident);
  // Tiles of the first block and of its first warpgroup, which have the most.
  const int64_t columns_tiles = tiling.grid_columns * instance.warpgroups;
  const int64_t rounds = ceil_divide(tiling.tiles, columns_tiles);
  const int64_t block_tiles =
      (rounds - 1) * instance.warpgroups +
      std::min<int64_t>(instance.warpgroups, tiling.tiles - (rounds - 1) * columns_tiles);
  const double tiles = blocks * to_double(block_tiles);
  const double chunks = to_double(tiling.chunks);

  // Instructions of a warpgroup.
  const int loads = instance.steps * (8 / element_bytes) * (loads_pairs ? 1 : 2);
  const double chunk = costs.product * instance.steps * instance.tiles + costs.load * loads;
  // Missing filters are not stored.
  const double filter_tiles = to_double(
      std::min<int64_t>(instance.tiles, ceil_divide(problem.filters_per_group(), int64_t{kTileFilters})));
  const double stores = filter_tiles * (stores_pairs ? 2 : 4);
  const double activation = 4 * instance.tiles * activation_nanoseconds(epilogue, costs_of(device));
  const double issue =
      tiles * (chunks * chunk + costs.store * stores + activation) * (spills(instance) ? costs.spill : 1);

  const double residual = epilogue.has_residual ? costs.residual * filter_tiles / 4 : 0;
  const double tile = costs.tile + residual + (instance.stages > 0 ? (chunks - 1) * costs.staged_chunk : 0);
  const double weights = blocks * to_double(tiling.weight_bytes) * multiprocessors / costs.weights;
  const double latency = waves * (weights + to_double(rounds) * tile);

  const double results = to_double(problem.output_elements()) * element_bytes;
  const double input = input_bytes_read(problem);
  const double tile_input = input / to_double(problem.group * tiling.tiles);
  const double l2 = tiles * tile_input * multiprocessors / costs.l2;
  const double others =
      to_double(problem.tensor_bytes()) -
      to_double(problem.batch * problem.in_channels * problem.input_size()) * element_bytes - results;
  const double stored = results * (stores_pairs ? 1 : costs.partial_sector * stored_sectors(element_bytes));
  const double memory = (input + stored + others) / costs.memory;
  // Kernels start early if their blocks fit beside those of the kernel before.
  return costs.launch + costs.late * std::min(1.0, 2 * grid / resident) +
         std::sqrt(issue * issue + latency * latency + l2 * l2 + memory * memory);
}

void search(const ConvProblem& problem, const Device& device, Candidates<Tiling>& found) {
  const int size = static_cast<int>(bytes_per_element(problem.type));
  for (const Instance& instance : kInstances) {
    // Copies to shared memory pay off only for pairs, each of which is one copy.
    if (instance.stages > 0 && (problem.output != problem.input || problem.output_size() % 2 != 0)) continue;
    Tiling tiling;
    tiling.instance = instance;
    tiling.filter_blocks = ceil_divide(problem.filters_per_group(), int64_t{instance.filters()});
    tiling.tiles = ceil_divide(problem.batch * problem.output_size(), int64_t{kTilePixels});
    tiling.chunks = ceil_divide(problem.channels_per_group(), int64_t{instance.channels(size)});
    tiling.weight_bytes = (tiling.chunks * instance.channels(size) * size + 4) * instance.filters();
    tiling.shared_bytes =
        tiling.weight_bytes + instance.warpgroups * instance.stages * instance.steps * kStageStepBytes;
    if (tiling.shared_bytes > device.shared_memory_per_block) continue;
    const int64_t rows = problem.group * tiling.filter_blocks;
    tiling.grid_columns =
        std::min(ceil_divide(tiling.tiles, int64_t{instance.warpgroups}),
                 std::max<int64_t>(1, device.multiprocessors * resident_blocks(tiling, device) / rows));
    if (instance.warpgroups == 1 && tiling.grid_columns < tiling.tiles) continue;
    tiling.cost = cost_of(problem, device, tiling);
    found.add(tiling);
  }
}

}  // namespace convswap::pointwise
