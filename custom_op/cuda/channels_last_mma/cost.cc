// Chooses the tiling of channels_last_mma with the lowest estimated time, without measuring.

#include <algorithm>
#include <span>

#include "conv/arithmetic.h"
#include "cuda/channels_last_mma/family.h"
#include "cuda/costs/cost_table.h"
#include "cuda/host/arguments.h"
#include "cuda/host/candidates.h"
#include "cuda/host/estimate.h"
#include "cuda/host/shared_layout.h"

namespace convswap::channels_last_mma {
namespace {

constexpr int kRegisters = 65'536;        // of a multiprocessor
constexpr int kSharedRows = 4;            // of 128 bytes, in four matrices of ldmatrix
constexpr int64_t kReservedBytes = 1024;  // of shared memory, that each block takes besides its own

// True if the results of codes are staged as sums.
bool stages_sums(const ConvProblem& problem) {
  return problem.is_quantised() && code_results_of(problem) == CodeResults::any;
}

// Lays out shared memory; false if it does not fit into a block's.
bool lay_out(const ConvProblem& problem, const Device& device, Tiling& tiling) {
  const Instance& instance = tiling.instance;
  const int64_t staged_bytes = stages_sums(problem) ? sizeof(int) : bytes_per_element(problem.type);
  const int64_t result_bytes = int64_t{instance.positions} * instance.filters * staged_bytes;
  SharedLayout block(kRowBytes, device.shared_memory_per_block);
  tiling.shared.stages =
      block.place<unsigned char>(std::max(tiling.stages * instance.stage_bytes(), result_bytes));
  tiling.shared.pixels = block.place<FirstPixel>(instance.positions);
  if (problem.is_quantised()) {
    tiling.shared.initial_sums = block.place<int>(instance.filters);
    tiling.shared.scales = block.place<float>(instance.filters);
    tiling.shared.offsets = block.place<float>(instance.filters);
    tiling.shared.code_table = block.place<unsigned char>(kCodeCount);
  } else {
    tiling.shared.bias = block.place<float>(instance.filters);
  }
  tiling.shared_bytes = block.end();
  return tiling.shared_bytes <= device.shared_memory_per_block;
}

}  // namespace

void search(const ConvProblem& problem, const Device& device, Candidates<Tiling>& found) {
  const int max_stages = static_cast<int>(std::min<int64_t>(kMaxStages, k_chunks(problem) + 1));
  const bool is_75 = device.compute_capability < 80;
  for (const Instance& instance : is_75 ? std::span<const Instance>(kInstances75) : kInstances) {
    // The first of equal tilings counts.
    for (const int stages : {3, 4, 5, 2, 1}) {
      if (stages > max_stages || (stages == 1) != is_75) continue;
      Tiling tiling{.instance = instance, .stages = stages};
      tiling.position_blocks = ceil_divide(positions_of(problem), int64_t{instance.positions});
      tiling.filter_blocks = ceil_divide(problem.filters_per_group(), int64_t{instance.filters});
      if (!lay_out(problem, device, tiling)) continue;
      tiling.cost = cost_of(problem, device, tiling);
      found.add(tiling);
    }
  }
}

int64_t group_pieces(const ConvProblem& problem) {
  return problem.channels_per_group() * bytes_per_element(problem.type) / kPieceBytes;
}

int64_t k_chunks(const ConvProblem& problem) {
  return ceil_divide(problem.filter_size() * group_pieces(problem), int64_t{kRowPieces});
}

int64_t positions_of(const ConvProblem& problem) { return problem.batch * problem.output_size(); }

// A multiprocessor computes its resident blocks' tiles together, a wave after the other. A K chunk takes the
// mmas of all of them, or those of one and its latencies, or the loads to shared memory and from there.
double cost_of(const ConvProblem& problem, const Device& device, const Tiling& tiling) {
  const auto& costs = costs_of(device).channels_last_mma;
  const Instance& instance = tiling.instance;
  const int64_t multiprocessors = std::max(1, device.multiprocessors);
  const int64_t tiles = problem.group * tiling.filter_blocks * tiling.position_blocks;
  const int64_t resident = std::clamp<int64_t>(
      std::min<int64_t>(kRegisters / (instance.registers * instance.threads()),
                        device.shared_memory_per_multiprocessor / (tiling.shared_bytes + kReservedBytes)),
      1, ceil_divide(tiles, multiprocessors));
  const double results = to_double(int64_t{instance.positions} * instance.filters);
  const double multiplying = costs.mma * results / (kMmaPositions * kMmaFilters) * (kRowBytes / kMmaBytes);
  // Warps load their rows of pixels and weights, after cp.async has stored those of the tile.
  const int loaded_rows =
      instance.positions * instance.filter_warps + instance.filters * instance.position_warps;
  const double sharing = costs.shared * (loaded_rows + instance.positions + instance.filters) / kSharedRows;
  const double loading = to_double(instance.stage_bytes() * std::min(multiprocessors, tiles)) / costs.cache;
  const double tensors = problem.epilogue.has_residual ? 2 : 1;
  // Staged sums are written to shared memory and read.
  const double sum_rows = stages_sums(problem) ? 2 * results * sizeof(int) / kRowBytes : 0;
  const double storing =
      costs.store * tensors * results * to_double(bytes_per_element(problem.type)) / kRowBytes +
      costs.shared * sum_rows / kSharedRows +
      // The time of an instruction is that of two issue slots: two warps for each scheduler do not fill all
      // slots, and conversions, integer additions and limits take two cycles of their unit.
      costs.instruction * instructions_of_code(problem) * results / 32 +
      costs.activation * activation_cycles(problem.epilogue, costs_of(device)) * results / 32;
  const auto wave_of = [&](int64_t blocks) {
    if (blocks == 0) return 0.0;
    const double count = to_double(blocks);
    const double chunk = std::max({count * multiplying, multiplying + costs.chunk, count * sharing,
                                   count * loading, costs.load / std::max(1, tiling.stages - 1)});
    return costs.tile + to_double(k_chunks(problem)) * chunk + count * storing;
  };
  const int64_t wave = multiprocessors * resident, waves = tiles / wave;
  const double computing =
      to_double(waves) * wave_of(resident) + wave_of(ceil_divide(tiles - waves * wave, multiprocessors));
  const double memory = to_double(problem.tensor_bytes()) / costs.memory;
  return costs.launch + overlapped({computing, memory});
}

}  // namespace convswap::channels_last_mma
