#include <algorithm>
#include <cmath>

#include "conv/arithmetic.h"
#include "cuda/costs/cost_table.h"
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

}  // namespace

// Each block of warps computes strips of rows. The time is that of instruction issue and memory, which
// overlap in part, and the latency of the longest strip in each wave of blocks.
double cost_of(const ConvProblem& problem, const Device& device, const Tiling& tiling) {
  const auto& costs = costs_of(device).sliding_rows;
  const Instance& instance = tiling.instance;
  const double taps = to_double(instance.taps), outputs = to_double(instance.outputs),
               stride = to_double(instance.stride);
  const double row_products = taps * taps * outputs / stride;  // of an input row
  const double output_instructions = costs.output + activation_cycles(problem.epilogue, costs_of(device));
  const double row_instructions = row_products + costs.row + output_instructions * outputs / stride;
  const double rows = (to_double(problem.output[1]) / tiling.strips - 1) * stride + taps;
  const double block_instructions =
      kWarpsPerBlock * (costs.begin + 2 * taps * taps + rows * row_instructions);

  const double resident = min_blocks_per_sm(instance.taps);
  const double blocks = to_double(tiling.blocks) / std::max(1, device.multiprocessors);
  const double issue =
      (blocks < resident ? std::ceil(blocks) : blocks) * block_instructions / 4 * costs.instruction;
  const double memory = to_double(problem.tensor_bytes()) / costs.memory;
  const double resident_blocks = std::clamp(blocks, 1.0, resident);
  const double throughput =
      std::max(issue, memory) + costs.overlap * std::min(issue, memory) / std::sqrt(resident_blocks);
  const double strip_rows = (tiling.strip_rows - 1) * stride + taps;
  const double latency = strip_rows * (costs.row_latency + costs.latency_per_product * row_products);
  return costs.launch + throughput + std::ceil(blocks / resident) * latency;
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

std::vector<Tiling> tilings_of(const ConvProblem& problem, const Device& device, const Instance& instance) {
  Tiling tiling;
  tiling.instance = instance;
  set_pieces(problem, tiling);
  const int64_t planes = problem.batch * problem.out_channels;
  const int64_t groups = ceil_divide(planes, int64_t{kWarpsPerBlock} * tiling.warp_planes);
  std::vector<Tiling> tilings;
  for (const int count : {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 128, 256}) {
    const int64_t rows = ceil_divide(problem.output[1], count);
    if (!tilings.empty() && rows == tilings.back().strip_rows) continue;
    tiling.strip_rows = static_cast<int>(rows);
    tiling.strips = static_cast<int>(ceil_divide(problem.output[1], rows));
    tiling.blocks = groups * tiling.strips * tiling.segments;
    tiling.cost = cost_of(problem, device, tiling);
    tilings.push_back(tiling);
    if (rows <= 2) break;
  }
  std::ranges::stable_sort(tilings, {}, &Tiling::cost);
  return tilings;
}

}  // namespace convswap::sliding_rows
