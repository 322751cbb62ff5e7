// Chooses a block of pointwise, its filters, warpgroups and where chunks wait: the cheapest by estimate,
// without any measurement.

#include <algorithm>
#include <cmath>
#include <iterator>

#include "conv/arithmetic.h"
#include "cuda/host/estimate.h"
#include "cuda/pointwise/family.h"

namespace convswap::pointwise {
namespace {

// What a warpgroup takes for a chunk of a tile and for a tile's results, in nanoseconds; fitted, as all here,
// to an H200's times of pairs (benchmarks/pointwise.md).
struct Costs {
  double chunk, results;
};
// Of each instance for elements of four bytes and of two.
constexpr Costs kCosts[][2] = {{{674, 689}, {629, 960}},
                               {{1037, 1004}, {927, 1365}},
                               {{767, 727}, {713, 1141}},
                               {{768, 985}, {788, 981}},
                               {{965, 913}, {870, 1302}},
                               // Of two bytes it has too few registers.
                               {{953, 2109}, {1680, 2232}},
                               {{716, 578}, {705, 1090}},
                               {{802, 873}, {871, 1114}},
                               {{990, 1150}, {979, 1493}},
                               {{1219, 1918}, {1373, 2221}},
                               {{1076, 1696}, {905, 1908}},
                               {{172, 213}, {259, 81}},
                               {{101, 217}, {43, 20}}};
static_assert(std::size(kCosts) == std::size(kInstances));
// So many times as long do chunks take whose pixels are no pairs, and results; the latter to memory as if
// they were so many times as large, since they begin and end within its sectors.
struct Apart {
  double chunk, results, bytes;
};
constexpr Apart kApart[] = {{1.14, 1, 3.1}, {1.6, 1.8, 4.2}};
// So many times as long as pairs' chunks do those of strided pixels take, of a first tile and of others,
// whose loads are under way while the tile before is stored.
struct Strided {
  double first, others;
};
constexpr Strided kStrided[] = {{2, 0.84}, {4, 1.6}};

// Of a tile's results: of each a thread's values, by all warpgroups at the same time.
double activation_nanoseconds(const ConvProblem& problem, const Instance& instance) {
  if (!is_swish(problem.epilogue)) return 0;
  constexpr double kSiLU = 9.5, kHardSwish = 4;
  const double each = problem.epilogue.activation == Activation::silu ? kSiLU : kHardSwish;
  return 4 * instance.tiles * instance.warpgroups * each;
}

// How many blocks' shared memory a multiprocessor has.
int64_t blocks_that_fit(const Tiling& tiling, const Device& device) {
  constexpr int64_t kReserved = 1024;  // bytes that the card takes of each block's
  return std::max<int64_t>(1, device.shared_memory_per_multiprocessor / (tiling.shared_bytes + kReserved));
}

// Side by side on all multiprocessors: one on each, but of one warpgroup a few.
int64_t blocks_at_once(const Tiling& tiling, const Device& device) {
  constexpr int64_t kMost = 4;
  const bool is_small = tiling.instance.warpgroups == 1;
  return device.multiprocessors * (is_small ? std::min(kMost, blocks_that_fit(tiling, device)) : 1);
}

// Of blocks of one warpgroup, which have one tile each.
double cost_of_one_tile(const ConvProblem& problem, const Device& device, const Tiling& tiling,
                        std::size_t instance) {
  // Of elements of four bytes and of two: for a block more on each multiprocessor, for a tile more, and for a
  // chunk more than wait in slots. Bytes in a nanosecond: a block's weights; pixels and results.
  constexpr double kBlock[] = {150, 487}, kTile[] = {1714, 1445}, kUnstagedChunk[] = {150, 450};
  constexpr double kLaunch = 1430, kWeights = 16, kMemory = 2114;
  const double size = to_double(bytes_per_element(problem.type));
  const int width = size == 4 ? 0 : 1;
  const auto [chunk, results] = kCosts[instance][width];
  const double x = size * to_double(problem.batch * problem.in_channels * problem.input_size());
  const double y = size * to_double(problem.batch * problem.out_channels * problem.output_size());
  // On each multiprocessor.
  const double multiprocessors = std::max(1, device.multiprocessors);
  const double tiles = to_double(tiling.grid_columns) / multiprocessors;
  const double blocks = std::max(1.0, tiles * to_double(problem.group * tiling.filter_blocks));
  const double chunks =
      to_double(problem.channels_per_group()) /
      to_double(tiling.instance.channels(static_cast<int>(bytes_per_element(problem.type))));
  const double work = blocks * to_double(tiling.weight_bytes) / kWeights + chunks * chunk +
                      std::max(0.0, chunks - tiling.instance.stages) * kUnstagedChunk[width] + results +
                      blocks * activation_nanoseconds(problem, tiling.instance) +
                      (blocks - 1) * kBlock[width] + std::max(0.0, tiles - 1) * kTile[width];
  return kLaunch + std::hypot(work, (to_double(tiling.filter_blocks) * x + y) / kMemory);
}

double cost_of(const ConvProblem& problem, const Device& device, const Tiling& tiling, std::size_t instance) {
  if (tiling.instance.warpgroups == 1) return cost_of_one_tile(problem, device, tiling, instance);
  constexpr double kLaunch = 1782;
  // The first slots are filled before anything is multiplied; then more of the shorter time, memory's or the
  // warpgroups', passes during the longer: all of it with an endless power, none with 1.
  const bool uses_smem_stages = tiling.instance.stages > 0;
  const double fill = uses_smem_stages ? 25 : 0, power = uses_smem_stages ? 2.5 : 2;
  // Bytes of a nanosecond: a block's weights; these where there is room for the block beside those of a
  // kernel like it before, so that only float32 is still to be rounded; pixels and results; pixels that were
  // read before.
  constexpr double kWeights = 37.7, kEarlyWeights = 66.8, kMemory = 3806, kAgain = 10617;
  const double size = to_double(bytes_per_element(problem.type));
  // Rows that no output reads are not read.
  const double x = size * to_double(problem.batch * problem.in_channels * problem.input_size()) /
                   to_double(problem.stride[0] * problem.stride[1]);
  const double y = size * to_double(problem.batch * problem.out_channels * problem.output_size());
  const int width = size == 4 ? 0 : 1;
  auto [chunk, results] = kCosts[instance][width];
  double written = y;
  const bool stores_pairs = problem.output_size() % 2 == 0;
  double first_chunk = chunk;
  if (problem.output != problem.input) {
    first_chunk *= kStrided[width].first, chunk *= kStrided[width].others;
  } else if (!stores_pairs) {
    first_chunk = chunk *= kApart[width].chunk;
  }
  if (!stores_pairs) results *= kApart[width].results, written *= kApart[width].bytes;
  results += activation_nanoseconds(problem, tiling.instance);
  const double memory = (x + written) / kMemory + to_double(tiling.filter_blocks - 1) * x / kAgain;
  // The last chunk has fewer channels.
  const double chunks =
      to_double(problem.channels_per_group()) /
      to_double(tiling.instance.channels(static_cast<int>(bytes_per_element(problem.type))));
  const double rounds =
      to_double(ceil_divide(tiling.tiles, tiling.grid_columns * tiling.instance.warpgroups));
  const double work = chunks * (first_chunk + (rounds - 1) * chunk) + rounds * results;
  const int64_t blocks = tiling.grid_columns * problem.group * tiling.filter_blocks;
  const bool are_early = blocks_that_fit(tiling, device) > 1 || 2 * blocks <= device.multiprocessors;
  const double weight_bytes = to_double(tiling.weight_bytes);
  const double weights = !are_early ? weight_bytes / kWeights : width == 0 ? weight_bytes / kEarlyWeights : 0;
  return kLaunch + fill + weights + std::pow(std::pow(memory, power) + std::pow(work, power), 1 / power);
}

}  // namespace

std::vector<Tiling> cheapest_tilings(const ConvProblem& problem, const Device& device) {
  const int size = static_cast<int>(bytes_per_element(problem.type));
  std::vector<Tiling> all;
  for (std::size_t i = 0; i < std::size(kInstances); ++i) {
    const Instance& instance = kInstances[i];
    // Slots are worth it for pairs alone, which are copied at once.
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
    tiling.grid_columns = std::min(ceil_divide(tiling.tiles, int64_t{instance.warpgroups}),
                                   std::max<int64_t>(1, blocks_at_once(tiling, device) / rows));
    if (instance.warpgroups == 1 && tiling.grid_columns < tiling.tiles) continue;
    tiling.cost = cost_of(problem, device, tiling, i);
    all.push_back(tiling);
  }
  std::ranges::stable_sort(all, {}, &Tiling::cost);
  return all;
}

}  // namespace convswap::pointwise
