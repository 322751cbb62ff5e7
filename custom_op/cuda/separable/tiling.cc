// Chooses a block's tile of separable: the cheapest by estimate, without any measurement.

#include "cuda/separable/tiling.h"

#include <algorithm>
#include <cmath>

#include "conv/arithmetic.h"

namespace convswap::separable {
namespace {

// Nanoseconds on an H200, by a prototype that was measured at layers of MobileNetV2.
double cost_of(const ConvProblem& problem, const Device& device, const Tiling& tiling) {
  constexpr double kLaunch = 2000, kBytesPerNanosecond = 24;  // of a multiprocessor
  // Of a block that has a multiprocessor for itself, and of blocks side by side: what it takes beside its
  // steps, a step, and a step's row of each thread, with a stride of 2 also times so much.
  constexpr double kAlone = 1500, kAloneStep = 300, kAloneRow = 250, kAloneStride = 1.4;
  constexpr double kBeside = 2500, kBesideRow = 275, kBesideStride = 2;
  const auto number = [](int64_t value) { return static_cast<double>(value); };
  const Instance& own = tiling.instance;
  const int64_t multiprocessors = std::max(1, device.multiprocessors);
  const double steps = number(ceil_divide(problem.in_channels, int64_t{kStepChannels}));
  const double each = number(tiling.blocks) / number(multiprocessors);
  const double memory = number(problem.tensor_bytes()) / (kBytesPerNanosecond * number(multiprocessors));
  if (each <= 1) {
    const double row = kAloneRow * (own.stride == 2 ? kAloneStride : 1);
    return kLaunch + std::max(memory, kAlone + steps * (kAloneStep + own.rows * row));
  }
  const int resident = blocks_at_once(own.stride, own.rows, own.filter_tiles);
  const double waves = each < 2 * resident ? std::ceil(each / resident) : each / resident;
  const double step = kBesideRow * resident * own.rows * (own.stride == 2 ? kBesideStride : 1);
  return kLaunch + std::max(memory, waves * (kBeside + steps * step));
}

}  // namespace

int64_t shared_bytes_of(const Instance& instance) {
  const int64_t warps = instance.threads() / kWarp;
  const int64_t pixels = int64_t{instance.tile_rows()} * instance.tile_columns();
  const int64_t padded = round_up(pixels, kTilePixels * warps);
  return 2 * kStepChannels * (round_up(padded, int64_t{32}) + 8) * 4;
}

std::vector<Tiling> cheapest_tilings(const ConvProblem& problem, const Device& device) {
  std::vector<Tiling> all;
  for (const Instance& instance : kInstances) {
    if (instance.stride != problem.before.front().stride[1]) continue;
    if (problem.out_channels > instance.most_filters()) continue;
    // Twice as many products as filters ask for are not worth a tile of their own.
    if (problem.out_channels <= instance.most_filters() - kTileFilters) continue;
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
