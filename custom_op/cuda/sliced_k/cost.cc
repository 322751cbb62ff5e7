// Estimates the times of sliced_k's tilings.

#include <algorithm>
#include <cmath>

#include "conv/arithmetic.h"
#include "cuda/costs/cost_table.h"
#include "cuda/host/candidates.h"
#include "cuda/host/estimate.h"
#include "cuda/sliced_k/arguments.h"
#include "cuda/sliced_k/family.h"

namespace convswap::sliced_k {
namespace {

bool has_one_tap(const ConvProblem& problem) {
  const auto is_none = [](int64_t padding) { return padding == 0; };
  return problem.filter_size() == 1 && std::ranges::all_of(problem.pad_begin, is_none) &&
         std::ranges::all_of(problem.pad_end, is_none);
}

// Blocks that the registers of a multiprocessor hold at once, as compiled for compute capability 9.0.
int resident_blocks(const ConvProblem& problem, const Instance& instance) {
  const int products = instance.filter_tiles * instance.pixel_tiles;
  const bool is_small = bytes_per_element(problem.type) == 2;
  int warps = 16;
  if (products == 1) {
    warps += (is_small ? 8 : 0) + (instance.one_tap && !splits_operands(problem) ? 8 : 0);
  } else if (products >= 8) {
    warps = is_small ? 12 : 8;
  }
  return std::max(1, warps / instance.warps);
}

}  // namespace

// The time is a norm of three times: the instructions of a multiprocessor's warps, the latency of the longest
// warp in each wave of blocks, and memory.
double cost_of(const ConvProblem& problem, const Device& device, const Tiling& tiling) {
  const auto& costs = costs_of(device).sliced_k;
  const Instance& instance = tiling.instance;
  const double element_bytes = to_double(bytes_per_element(problem.type));
  const bool is_split = splits_operands(problem);
  const int products = instance.filter_tiles * instance.pixel_tiles;
  const int64_t steps = ceil_divide(k_size_of(problem), int64_t{kStepK});
  const int64_t warp_steps = ceil_divide(steps, int64_t{instance.warps});
  const int64_t filters = std::min<int64_t>(instance.filters(), problem.filters_per_group());
  // Per thread.
  const int64_t results =
      ceil_divide(filters * instance.pixels(), int64_t{instance.warps} * int64_t{kWarpSize});
  const double grid = to_double(problem.group * tiling.filter_blocks * tiling.pixel_blocks) /
                      std::max(1, device.multiprocessors);
  const double blocks = std::ceil(grid);
  const int resident = resident_blocks(problem, instance);
  const double waves = std::ceil(blocks / resident);

  // A warp loads the weights of eight filters at once. Loads of missing filters are not executed.
  const int64_t weight_loads = ceil_divide(filters, int64_t{8}) * (vectorizes_weight_loads(problem) ? 1 : 4);
  const int pixel_loads = vectorizes_pixel_loads(problem, instance) ? 4 : 4 * instance.pixel_tiles;
  const double product = is_split ? costs.split_product : costs.product * (element_bytes == 4 ? 2 : 1);
  const double warp_step =
      costs.step + costs.load * to_double(weight_loads + pixel_loads) + product * products;
  const double activation = activation_nanoseconds(problem.epilogue, costs_of(device));
  const double issue =
      blocks * (to_double(steps) * warp_step + to_double(results) * instance.warps * activation);

  const int loads_in_flight =
      register_stages(instance.filter_tiles, instance.pixel_tiles, instance.warps, is_split) - 1;
  const double result = costs.result + (problem.epilogue.has_residual ? costs.residual : 0);
  const double latency = waves * (costs.begin + costs.latency * to_double(warp_steps) / loads_in_flight +
                                  result * to_double(results));

  // Each further block of filters reads the input again.
  const double input_bytes =
      element_bytes * to_double(problem.batch * problem.in_channels * problem.input_size());
  const double memory = to_double(problem.tensor_bytes()) / costs.memory +
                        to_double(tiling.filter_blocks - 1) * input_bytes / costs.l2;
  const auto powered = [](double time) { return time * std::sqrt(time); };
  const double sum = powered(issue) + powered(latency) + powered(memory);
  // Kernels start early if their blocks fit beside those of the kernel before.
  return costs.launch + costs.late * std::min(1.0, 2 * grid / resident) + std::cbrt(sum * sum);
}

int64_t k_size_of(const ConvProblem& problem) { return problem.channels_per_group() * problem.filter_size(); }

int64_t shared_bytes_of(const Instance& instance) {
  return int64_t{instance.warps} * instance.filters() * accumulator_pitch(instance.pixel_tiles) * 4;
}

bool splits_operands(const ConvProblem& problem) {
  return problem.type == ElementType::float32 &&
         (problem.precision == Precision::ieee || problem.is_depthwise());
}

bool vectorizes_weight_loads(const ConvProblem& problem) { return k_size_of(problem) % 4 == 0; }

bool vectorizes_pixel_loads(const ConvProblem& problem, const Instance& instance) {
  return instance.one_tap && problem.output == problem.input &&
         problem.output_size() % instance.pixel_tiles == 0;
}

void search(const ConvProblem& problem, const Device& device, Candidates<Tiling>& found) {
  for (const Instance& instance : kInstances) {
    if (instance.one_tap != has_one_tap(problem)) continue;
    // The smallest instance takes 4 KB, which every card has.
    if (shared_bytes_of(instance) > device.shared_memory_per_block) continue;
    Tiling tiling;
    tiling.instance = instance;
    tiling.filter_blocks = ceil_divide(problem.filters_per_group(), int64_t{instance.filters()});
    tiling.pixel_blocks = ceil_divide(problem.batch * problem.output_size(), int64_t{instance.pixels()});
    tiling.cost = cost_of(problem, device, tiling);
    found.add(tiling);
  }
}

}  // namespace convswap::sliced_k
