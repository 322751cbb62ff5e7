// Chooses a block's tile of separable: the cheapest by estimate, without any measurement.

#include <algorithm>
#include <cmath>

#include "conv/arithmetic.h"
#include "cuda/host/estimate.h"
#include "cuda/separable/family.h"

namespace convswap::separable {
namespace {

// Nanoseconds on an H200: fitted to every tiling of layers of MobileNetV2, of a detector and of large images,
// at batches of 1 and 64, of which it is 7 % off by root mean square. Each time is of a block and a step.
double cost_of(const ConvProblem& problem, const Device& device, const Tiling& tiling) {
  constexpr double kLaunch = 1870;
  constexpr double kBytesPerNanosecond = 24.4;  // of a multiprocessor
  // Of a step alone, what a thread waits for; a row of each thread; the eighth thread beside seven.
  constexpr double kAlone = 570, kAloneRow = 123, kAloneEighth = 80;
  // Of blocks side by side, what each adds; warps of seven threads a row load lines in pieces.
  constexpr double kBeside = 282, kBesideRow = 185, kBesideSeven = 1.02;
  constexpr double kStride = 1.9;     // rows of x for a row with a stride of 2
  constexpr double kSmall = 0.74;     // numbers of 16 bits
  constexpr double kResults = 250;    // to write a row of each thread, of a tile of filters
  constexpr double kLastWave = 0.25;  // of many
  constexpr double kOfCycle = 0.006;  // of a scheduler, for a result's activation; not timed
  const Instance& instance = tiling.instance;
  const int64_t multiprocessors = std::max(1, device.multiprocessors);
  const double steps = to_double(ceil_divide(problem.in_channels, int64_t{kStepChannels}));
  const double each = to_double(tiling.blocks) / to_double(multiprocessors);
  const double resident = min_blocks_per_sm(instance.stride, instance.rows, instance.filter_tiles);
  const double together = std::min(resident, std::ceil(each));
  const double waves = each < 2 * resident ? std::ceil(each / resident) : each / resident + kLastWave;
  const double rows = instance.rows * (instance.stride == 2 ? kStride : 1);
  const double alone = kAlone + (instance.across == 8 ? kAloneEighth : 0) + rows * kAloneRow;
  const double beside = together * (kBeside + rows * kBesideRow) * (instance.across == 7 ? kBesideSeven : 1);
  // The longer of the two, and somewhat longer where neither is.
  const double step = std::sqrt(std::hypot(alone * alone, beside * beside)) *
                      (problem.type == ElementType::float32 ? 1 : kSmall);
  const double results = kResults * together * instance.rows * instance.filter_tiles;
  const double memory =
      to_double(problem.tensor_bytes()) / (kBytesPerNanosecond * to_double(multiprocessors));
  const double between = to_double(problem.batch * problem.in_channels * problem.output_size()) *
                         activation_cycles(problem.depthwise.front().epilogue, costs_of(device));
  const double behind = to_double(problem.batch * problem.out_channels * problem.output_size()) *
                        activation_cycles(problem.epilogue, costs_of(device));
  const double activating = kOfCycle * (between + behind) / to_double(multiprocessors);
  return kLaunch + std::max(memory, waves * (results + steps * step)) + activating;
}

}  // namespace

int64_t shared_bytes_of(const Instance& instance) {
  const int64_t warps = instance.threads() / kWarpSize;
  const int64_t pixels = int64_t{instance.tile_rows()} * instance.tile_columns();
  const int64_t padded = round_up(pixels, kTilePixels * warps);
  return 2 * kStepChannels * (round_up(padded, int64_t{32}) + 8) * 4;
}

std::vector<Tiling> cheapest_tilings(const ConvProblem& problem, const Device& device) {
  std::vector<Tiling> all;
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
    all.push_back(tiling);
  }
  std::ranges::stable_sort(all, {}, &Tiling::cost);
  return all;
}

}  // namespace convswap::separable
