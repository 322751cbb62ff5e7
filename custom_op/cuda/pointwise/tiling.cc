// Chooses how many filters a block of pointwise has: the cheapest by estimate, without any measurement.

#include "cuda/pointwise/tiling.h"

#include <algorithm>

#include "conv/arithmetic.h"

namespace convswap::pointwise {
namespace {

// Nanoseconds, by arithmetic; the constants are of an H200. What memory takes, or what a warpgroup waits for:
// chunk after chunk, and until the results of a tile are on their way.
double cost_of(const ConvProblem& problem, const Tiling& tiling) {
  constexpr double kLaunch = 3700;
  // Of a warpgroup's chunk and of a tile's results, by how many filters these are beside.
  constexpr double kNarrowChunk = 1500, kChunk = 2000, kResults = 2000, kWideResults = 4500;
  constexpr double kBytes = 3400, kBytesAgain = 4200;  // of a microsecond
  const auto number = [](int64_t count) { return static_cast<double>(count); };
  const double size = number(size_of(problem.type));
  // Rows that no output reads are not read.
  const double x = size * number(problem.batch * problem.in_channels * problem.input_size()) /
                   number(problem.stride[0] * problem.stride[1]);
  const double y = size * number(problem.batch * problem.out_channels * problem.output_size());
  const double memory = (x + y) / kBytes + number(tiling.filter_blocks - 1) * x / kBytesAgain;
  const bool is_narrow = tiling.instance.tiles <= 8, is_wide = tiling.instance.tiles > 16;
  const double tile =
      number(tiling.chunks) * (is_narrow ? kNarrowChunk : kChunk) + (is_wide ? kWideResults : kResults);
  const double rounds = number(ceil_divide(tiling.tiles, tiling.columns * tiling.instance.warpgroups));
  return kLaunch + std::max(memory, rounds * tile);
}

}  // namespace

std::vector<Tiling> cheapest_tilings(const ConvProblem& problem, const Device& device) {
  std::vector<Tiling> all;
  for (const Instance& instance : kInstances) {
    Tiling tiling;
    tiling.instance = instance;
    tiling.filter_blocks = ceil_divide(problem.filters_per_group(), int64_t{instance.filters()});
    tiling.tiles = ceil_divide(problem.batch * problem.output_size(), int64_t{kPixels});
    tiling.chunks = ceil_divide(problem.channels_per_group(), int64_t{instance.channels()});
    tiling.shared_bytes = (tiling.chunks * instance.channels() + 1) * instance.filters() * 4;
    if (tiling.shared_bytes > device.shared_memory_per_block) continue;
    const int64_t rows = problem.group * tiling.filter_blocks;
    tiling.columns = std::min(ceil_divide(tiling.tiles, int64_t{instance.warpgroups}),
                              std::max<int64_t>(1, device.multiprocessors / rows));
    tiling.cost = cost_of(problem, tiling);
    all.push_back(tiling);
  }
  std::ranges::stable_sort(all, {}, &Tiling::cost);
  return all;
}

}  // namespace convswap::pointwise
