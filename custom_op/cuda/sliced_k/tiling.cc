// Chooses a block's tile of sliced_k: the cheapest by estimate, without any measurement.

#include "cuda/sliced_k/tiling.h"

#include <algorithm>
#include <cmath>

#include "conv/arithmetic.h"
#include "cuda/host/activation_cost.h"

namespace convswap::sliced_k {
namespace {

bool has_one_tap(const ConvProblem& problem) {
  const auto is_none = [](int64_t padding) { return padding == 0; };
  return problem.filter_size() == 1 && std::ranges::all_of(problem.pad_begin, is_none) &&
         std::ranges::all_of(problem.pad_end, is_none);
}

// In nanoseconds, of elements of four bytes and of two; fitted to an H200's times of the layers of the suites
// one-image and course (benchmarks/sliced_k.md), single_weights to those of first layers, where its fit of
// deeper layers, 125 and 170, took twice as long as the card.
struct Costs {
  double launch;                  // of any kernel
  double blocks, load, own_sums;  // of blocks side by side; of what a thread of theirs waits for: a step's
                                  // load of a tile, and the sums of a product of two tiles
  double one_tap, taps, pixels;   // of a step: what addresses take, of filters of several taps also by pixels
  double single_weights;          // of a step: a tile of filters that are loaded number by number
  double sums;                    // of a warp's sums of a product of two tiles
};
constexpr Costs kCosts[] = {{1400, 411, 54.5, 113, 34.6, 24.5, 3.55, 40, 12.1},
                            {1400, 316, 47.0, 123, 30.8, 25.4, 3.62, 40, 11.4}};

// Of a result's activation on a multiprocessor, for a cycle of a scheduler.
constexpr double kActivation = 0.01;

// Where numbers are split, of a step: what it takes to split those of a tile of eight filters or pixels, and
// a product's four more, which are added up apart. By the instructions; of 29 layers of many-channels in
// ieee, one image and 64, an H100 takes what they make within 10 % at 25, 0.75 to 1.19 of it at the others.
constexpr double kSplitting = 1.7, kMoreProducts = 4.3;

double cost_of(const ConvProblem& problem, const Device& device, const Tiling& tiling) {
  const Costs& costs = kCosts[size_of(problem.type) == 4 ? 0 : 1];
  const Instance& own = tiling.instance;
  const auto number = [](int64_t count) { return static_cast<double>(count); };
  const double steps = number(ceil_divide(depth_of(problem), int64_t{kStepDepth}));
  const double of_warp = std::ceil(steps / own.warps);
  const double products = own.filter_tiles * own.pixel_tiles;
  const double loads = 2 * own.filter_tiles + own.pixel_tiles;
  // Blocks of a multiprocessor, and how many of them it seems to have at once: more of some would fit.
  const double each = number(problem.group * tiling.filter_blocks * tiling.pixel_blocks) /
                      std::max(1, device.multiprocessors);
  const double resident = own.warps == 4 || (own.warps == 8 && products < 8) ? 2 : 1;
  const double waves = each < 4 * resident ? std::ceil(each / resident) : each / resident;
  const double blocks = each < 8 ? std::ceil(each) : each;
  const double addresses = (own.one_tap ? costs.one_tap : costs.taps + costs.pixels * own.pixel_tiles) +
                           (loads_weights_together(problem) ? 0 : costs.single_weights * own.filter_tiles) +
                           (splits(problem) ? kSplitting * loads + kMoreProducts * products : 0);
  const double results = number(problem.batch * problem.out_channels * problem.output_size());
  const double activating =
      kActivation * activation_cycles(problem.epilogue) * results / std::max(1, device.multiprocessors);
  return costs.launch + activating +
         waves * (costs.blocks + costs.load * of_warp * loads + costs.own_sums * products) +
         blocks * (steps * addresses + costs.sums * own.warps * products);
}

}  // namespace

int64_t depth_of(const ConvProblem& problem) { return problem.channels_per_group() * problem.filter_size(); }

int64_t shared_bytes_of(const Instance& instance) {
  return int64_t{instance.warps} * instance.filters() * sums_pitch(instance.pixel_tiles) * 4;
}

bool splits(const ConvProblem& problem) {
  return problem.type == ElementType::float32 &&
         (problem.precision == Precision::ieee || problem.is_depthwise());
}

bool loads_weights_together(const ConvProblem& problem) { return depth_of(problem) % 4 == 0; }

bool loads_pixels_together(const ConvProblem& problem, const Instance& instance) {
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
