// Chooses a block's tile of separable: the cheapest by estimate, without any measurement.

#include <algorithm>
#include <cmath>

#include "conv/arithmetic.h"
#include "cuda/costs/cost_table.h"
#include "cuda/host/candidates.h"
#include "cuda/host/estimate.h"
#include "cuda/separable/family.h"

namespace convswap::separable {
namespace {

constexpr int kSchedulers = 4;  // of a multiprocessor

}  // namespace
// Each block goes through the channels in steps. Blocks run in waves, while memory is read and written. Two
// activities take the root of the sum of their squares: a wait of a thread and the work of its
// multiprocessor's blocks in a step, and the waves and memory.
double cost_of(const ConvProblem& problem, const Device& device, const Tiling& tiling) {
  const auto& costs = costs_of(device).separable;
  const Instance& instance = tiling.instance;
  const double multiprocessors = std::max(1, device.multiprocessors);
  const double blocks = to_double(tiling.blocks) / multiprocessors;
  const double resident = min_blocks_per_sm(instance.stride, instance.rows, instance.filter_tiles);
  const double together = std::min(resident, std::ceil(blocks));
  const double input_rows = (instance.rows - 1) * instance.stride + kTaps;  // of a thread

  const double wait = costs.step + input_rows * costs.row_latency;
  const double work = together * input_rows * costs.row;
  const double step = std::hypot(wait, work);
  const double steps = to_double(ceil_divide(problem.in_channels, int64_t{kStepChannels}));
  const double results = together * instance.rows * instance.filter_tiles * costs.results;
  const double waves = std::ceil(blocks / resident) * (steps * step + results);

  const double between = to_double(problem.batch * problem.in_channels * problem.output_size()) *
                         activation_cycles(problem.depthwise.front().epilogue, costs_of(device));
  const double behind = to_double(problem.batch * problem.out_channels * problem.output_size()) *
                        activation_cycles(problem.epilogue, costs_of(device));
  const double activations = (between + behind) / (kWarpSize * kSchedulers * multiprocessors);
  return costs.launch + std::hypot(waves, to_double(problem.tensor_bytes()) / costs.memory) +
         activations * costs.activation;
}

int64_t shared_bytes_of(const Instance& instance) {
  const int64_t warps = instance.threads() / kWarpSize;
  const int64_t pixels = int64_t{instance.tile_rows()} * instance.tile_columns();
  const int64_t padded = round_up(pixels, kTilePixels * warps);
  return 2 * kStepChannels * (round_up(padded, int64_t{32}) + 8) * 4;
}

void search(const ConvProblem& problem, const Device& device, Candidates<Tiling>& found) {
  for (const Instance& instance : kInstances) {
    if (instance.stride != problem.depthwise.front().stride[1]) continue;
    if (problem.out_channels > instance.max_filters()) continue;
    // Skips instances with an entirely unused filter tile.
    if (problem.out_channels <= instance.max_filters() - kTileFilters) continue;
    if (shared_bytes_of(instance) > device.shared_memory_per_block) continue;
    Tiling tiling;
    tiling.instance = instance;
    tiling.tiles_down = ceil_divide(problem.output[1], int64_t{instance.tile_rows()});
    tiling.tiles_across = ceil_divide(problem.output[2], int64_t{instance.tile_columns()});
    tiling.blocks = problem.batch * tiling.tiles_down * tiling.tiles_across;
    tiling.cost = cost_of(problem, device, tiling);
    found.add(tiling);
  }
}

}  // namespace convswap::separable
