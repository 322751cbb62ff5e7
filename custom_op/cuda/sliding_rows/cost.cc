#include <algorithm>
#include <cmath>

#include "conv/arithmetic.h"
#include "cuda/costs/cost_table.h"
#include "cuda/host/candidates.h"
#include "cuda/host/estimate.h"
#include "cuda/sliding_rows/arguments.h"
#include "cuda/sliding_rows/family.h"

namespace convswap::sliding_rows {
namespace {

// Sets the distribution of a row's pieces over lanes and warps.
void set_pieces(const ConvProblem& problem, Tiling& tiling) {
  const Instance& instance = tiling.instance;
  const int piece = instance.outputs * instance.stride;
  const int left_halo = halo_lanes(instance.pad_left, piece);
  const int right_halo = halo_lanes(std::max(0, instance.taps - instance.stride - instance.pad_left), piece);
  // The window of the last outputs may reach pieces that have no outputs.
  const int64_t pieces =
      std::max(ceil_divide(problem.output[2], instance.outputs), ceil_divide(problem.input[2], piece));
  tiling.lanes = static_cast<int>(std::min<int64_t>(pieces, kWarpSize));
  tiling.warp_planes = kWarpSize / tiling.lanes;
  if (pieces <= kWarpSize) return;
  tiling.segment_pieces = kWarpSize - left_halo - right_halo;
  tiling.segments = static_cast<int>(ceil_divide(pieces - left_halo - right_halo, tiling.segment_pieces));
}

// The share of the tensors' bytes that come from DRAM and not from the L2 cache, if the kernel before used
// the same tensors: none if they fill half the cache, all if they fill the whole.
double miss_share(const ConvProblem& problem, const Device& device) {
  if (device.l2_cache_bytes == 0) return 1;
  return std::clamp(2 * to_double(problem.tensor_bytes()) / device.l2_cache_bytes - 1, 0.0, 1.0);
}

}  // namespace

// The time is that of instruction issue and memory together, and that of a strip's rows one after the other
// for each wave of blocks.
double cost_of(const ConvProblem& problem, const Device& device, const Tiling& tiling) {
  const auto& costs = costs_of(device).sliding_rows;
  const Instance& instance = tiling.instance;
  const int piece_columns = instance.outputs * instance.stride;
  const int right_halo = std::max(0, instance.taps - instance.stride - instance.pad_left);
  const int loads = piece_columns / instance.vector_columns, shuffles = instance.pad_left + right_halo;
  const double taps = to_double(instance.taps), stride = to_double(instance.stride);
  const double row_outputs = instance.outputs / stride;  // of an input row
  const double row_instructions =
      costs.row + costs.transfer * (loads + shuffles) +
      row_outputs * (taps * taps + costs.output + activation_cycles(problem.epilogue, costs_of(device)));
  const double begin_instructions = costs.begin + 2 * taps * taps;
  const double mean_rows = (to_double(problem.output[1]) / tiling.strips - 1) * stride + taps;

  const double resident = min_blocks_per_sm(instance.taps);
  const double blocks = to_double(tiling.blocks) / std::max(1, device.multiprocessors);
  // Blocks of two launches share a multiprocessor after an early start. If not all blocks of both are
  // resident, some multiprocessors get more blocks than others.
  const double uneven = costs.tail * resident * std::sqrt(std::clamp(2 * blocks / resident - 1, 0.0, 1.0));
  // A warp of the block on each of the four schedulers.
  static_assert(kWarpsPerBlock == 4);
  const double issue =
      (blocks + uneven) * (begin_instructions + mean_rows * row_instructions) * costs.instruction;
  const double misses = miss_share(problem, device);
  const double memory = to_double(problem.tensor_bytes()) *
                        (misses / costs.memory + (1 - misses) / costs.cache) * (1 + uneven / blocks);

  const int period = max_output_rows_per_input_row(instance.taps, instance.stride) * instance.stride;
  const int prefetched =
      prefetched_rows(instance.taps, period, static_cast<int>(bytes_per_element(problem.type)));
  const double strip_rows = (tiling.strip_rows - 1) * stride + taps;
  const double residual = problem.epilogue.has_residual ? costs.residual * tiling.strip_rows : 0;
  const double latency = costs.latency * (begin_instructions + strip_rows * row_instructions) +
                         costs.memory_latency * misses * strip_rows / prefetched + residual;
  const double waves = std::max(1.0, blocks / resident);
  return costs.launch + overlapped({issue, memory}) + waves * latency;
}

const Instance* instance_for(const ConvProblem& problem) {
  const bool is_image = problem.spatial_rank == 2 && problem.filter[1] == problem.filter[2] &&
                        problem.stride[1] == problem.stride[2] && problem.dilation[1] == 1 &&
                        problem.dilation[2] == 1;
  if (!is_image) return nullptr;
  for (const Instance& instance : kInstances) {
    if (instance.taps == problem.filter[2] && instance.stride == problem.stride[2] &&
        instance.pad_left == problem.pad_begin[2] && problem.input[2] % instance.vector_columns == 0) {
      return &instance;
    }
  }
  return nullptr;
}

void search(const ConvProblem& problem, const Device& device, Candidates<Tiling>& found) {
  Tiling tiling;
  tiling.instance = *instance_for(problem);
  set_pieces(problem, tiling);
  const int64_t planes = problem.batch * problem.out_channels;
  const int64_t groups = ceil_divide(planes, int64_t{kWarpsPerBlock} * tiling.warp_planes);
  for (const int count : {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 128, 256}) {
    const int64_t rows = ceil_divide(problem.output[1], count);
    if (count > 1 && rows == tiling.strip_rows) continue;
    tiling.strip_rows = static_cast<int>(rows);
    tiling.strips = static_cast<int>(ceil_divide(problem.output[1], rows));
    tiling.blocks = groups * tiling.strips * tiling.segments;
    tiling.cost = cost_of(problem, device, tiling);
    found.add(tiling);
    if (rows <= 2) break;
  }
}

}  // namespace convswap::sliding_rows
