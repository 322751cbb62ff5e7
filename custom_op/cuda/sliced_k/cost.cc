// Chooses a block's tile of sliced_k: the cheapest by estimate, without any measurement.

#include <algorithm>
#include <cmath>

#include "conv/arithmetic.h"
#include "cuda/host/estimate.h"
#include "cuda/sliced_k/family.h"

namespace convswap::sliced_k {
namespace {

bool has_one_tap(const ConvProblem& problem) {
  const auto is_none = [](int64_t padding) { return padding == 0; };
  return problem.filter_size() == 1 && std::ranges::all_of(problem.pad_begin, is_none) &&
         std::ranges::all_of(problem.pad_end, is_none);
}

// In nanoseconds but for the last, of elements of four bytes and of two; fitted to an H200's times of 617
// problems, but for what version 9 has less of a launch, which is by those of one image
// (benchmarks/sliced_k.md).
struct Costs {
  double launch;                    // of any kernel
  double blocks, load, accumulate;  // of blocks side by side; of what a thread of theirs waits for: a step's
                                    // load of a tile, and the sums of a product of two tiles
  double one_tap, taps, pixels;  // of a step: what addresses take, of filters of several taps also by pixels
  double single_weights;         // of a step: a tile of filters that are loaded number by number
  double single_pixels;          // the same of pixels, of filters of one tap
  double accumulators;           // of a warp's sums of a product of two tiles
  double resident;               // blocks of four warps that a multiprocessor seems to have at once
};
constexpr Costs kCosts[] = {{680, 578, 45.4, 70.5, 33.4, 31.5, 2.59, 15.6, 4.37, 10.2, 2},
                            {750, 560, 46.5, 68.3, 20.4, 21.6, 3.40, 14.3, 7.52, 9.54, 3}};

// Of a result's activation on a multiprocessor, for a cycle of a scheduler.
constexpr double kActivation = 0.01;

// Where numbers are split, of a step: what it takes to split those of a tile of eight filters or pixels, and
// a product's four more, which are added up apart. So fitted: of 47 problems of course and many-channels in
// ieee, 39 are estimated within 10 %, the others at 0.78 to 1.13 of their time.
constexpr double kSplitting = 1.0, kMoreProducts = 6.7;

double cost_of(const ConvProblem& problem, const Device& device, const Tiling& tiling) {
  const Costs& costs = kCosts[bytes_per_element(problem.type) == 4 ? 0 : 1];
  const Instance& instance = tiling.instance;
  const double steps = to_double(ceil_divide(k_size_of(problem), int64_t{kStepK}));
  const double warp_steps = std::ceil(steps / instance.warps);
  const double products = instance.filter_tiles * instance.pixel_tiles;
  const double loads = 2 * instance.filter_tiles + instance.pixel_tiles;
  // Blocks of a multiprocessor, and how many of them it seems to have at once: more of some would fit.
  const double each = to_double(problem.group * tiling.filter_blocks * tiling.pixel_blocks) /
                      std::max(1, device.multiprocessors);
  const double resident = instance.warps == 4 ? costs.resident : instance.warps == 8 && products < 8 ? 2 : 1;
  const double waves = each < 4 * resident ? std::ceil(each / resident) : each / resident;
  const double blocks = each < 8 ? std::ceil(each) : each;
  double addresses = costs.taps + costs.pixels * instance.pixel_tiles;
  if (instance.one_tap) {
    addresses = costs.one_tap +
                (vectorizes_pixel_loads(problem, instance) ? 0 : costs.single_pixels * instance.pixel_tiles);
  }
  if (!vectorizes_weight_loads(problem)) addresses += costs.single_weights * instance.filter_tiles;
  if (splits_operands(problem)) addresses += kSplitting * loads + kMoreProducts * products;
  const double results = to_double(problem.batch * problem.out_channels * problem.output_size());
  const double activating = kActivation * activation_cycles(problem.epilogue, costs_of(device)) * results /
                            std::max(1, device.multiprocessors);
  return costs.launch + activating +
         waves * (costs.blocks + costs.load * warp_steps * loads + costs.accumulate * products) +
         blocks * (steps * addresses + costs.accumulators * instance.warps * products);
}

}  // namespace

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

std::vector<Tiling> cheapest_tilings(const ConvProblem& problem, const Device& device) {
  std::vector<Tiling> all;
  for (const Instance& instance : kInstances) {
    if (instance.one_tap != has_one_tap(problem)) continue;
    // The smallest takes 4 KB, which every card has.
    if (shared_bytes_of(instance) > device.shared_memory_per_block) continue;
    Tiling tiling;
    tiling.instance = instance;
    tiling.filter_blocks = ceil_divide(problem.filters_per_group(), int64_t{instance.filters()});
    tiling.pixel_blocks = ceil_divide(problem.batch * problem.output_size(), int64_t{instance.pixels()});
    tiling.cost = cost_of(problem, device, tiling);
    all.push_back(tiling);
  }
  std::ranges::stable_sort(all, {}, &Tiling::cost);
  return all;
}

}  // namespace convswap::sliced_k
