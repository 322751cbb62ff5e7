// Chooses what a block of many_channels does: the cheapest by estimate among some candidates, without any
// measurement.

#include "cuda/many_channels/tiling.h"

#include <algorithm>
#include <cmath>

#include "conv/arithmetic.h"
#include "cuda/host/shared_layout.h"
#include "cuda/many_channels/instances.h"

namespace convswap::many_channels {
namespace {

// The taps of one spatial axis: what of the padded input they read.
struct AxisTaps {
  std::vector<int64_t> phases;    // that any tap reads, by their first row or column
  std::vector<int64_t> phase_of;  // of each tap: the number of its phase
  std::vector<int64_t> shift_of;  // and how many rows or columns of the phase it lies behind the output's
  int64_t least_pitch = 0;        // such that padding behind a row and before the next may be one
  int64_t most_shift = 0;
};

AxisTaps taps_of(const ConvProblem& problem, int axis) {
  AxisTaps taps;
  const int64_t stride = problem.stride[axis], pad = problem.pad_begin[axis];
  taps.least_pitch = problem.output[axis];
  for (int64_t tap = 0; tap < problem.filter[axis]; ++tap) {
    const int64_t offset = tap * problem.dilation[axis], phase = offset % stride, shift = offset / stride;
    auto found = std::find(taps.phases.begin(), taps.phases.end(), phase);
    if (found == taps.phases.end()) found = taps.phases.insert(taps.phases.end(), phase);
    taps.phase_of.push_back(found - taps.phases.begin());
    taps.shift_of.push_back(shift);
    taps.most_shift = std::max(taps.most_shift, shift);
    // What the phase has before the data, and where these end.
    const int64_t before = pad > phase ? ceil_divide(pad - phase, stride) : 0;
    const int64_t end =
        problem.input[axis] + pad > phase ? ceil_divide(problem.input[axis] + pad - phase, stride) : 0;
    taps.least_pitch = std::max({taps.least_pitch, end, problem.output[axis] + shift - before});
  }
  return taps;
}

class Tiler {
 public:
  Tiler(const ConvProblem& problem, const Device& device)
      : problem_(problem), device_(device), rows_(taps_of(problem, 1)), columns_(taps_of(problem, 2)) {}

  std::optional<Tiling> best() const {
    Tiling best;
    const int64_t taps = problem_.filter[1] * problem_.filter[2];
    if (taps > kMostSteps || rows_.phases.size() * columns_.phases.size() > kMostPhases) return std::nullopt;
    const int64_t most_strips = std::min<int64_t>(ceil_divide(problem_.output[2], 16), 16);
    for (const Instance& instance : kInstances) {
      for (int row_sets = 1; row_sets <= (problem_.filters_per_group() > kRows ? 2 : 1); ++row_sets) {
        for (int64_t strips = 1; strips <= std::max<int64_t>(1, most_strips); ++strips) {
          for (int64_t pairs = 1; pairs <= 4; pairs *= 2) {
            if (pairs > 1 &&
                (pairs * taps > kMostSteps || pairs * kDepth >= 2 * problem_.channels_per_group())) {
              break;
            }
            Tiling tiling;
            tiling.tiles = instance.tiles;
            tiling.row_sets = row_sets;
            tiling.strips = strips;
            tiling.chunk_channels = pairs * kDepth;
            if (!complete(tiling)) continue;
            tiling.cost = cost(tiling);
            if (tiling.cost < best.cost) best = std::move(tiling);
          }
        }
      }
    }
    if (best.tiles == 0) return std::nullopt;
    return best;
  }

 private:
  // Fills in what follows from the choices; false where it does not fit into shared memory.
  bool complete(Tiling& tiling) const {
    const int64_t width = problem_.output[2];
    tiling.strip_columns = ceil_divide(width, tiling.strips);
    if (ceil_divide(width, tiling.strip_columns) != tiling.strips) return false;
    tiling.pitch = tiling.strips == 1 ? columns_.least_pitch : tiling.strip_columns + columns_.most_shift;
    tiling.rows = rows_.least_pitch;
    for (const int64_t row : rows_.phases) {
      for (const int64_t column : columns_.phases) {
        tiling.phase_rows.push_back(row), tiling.phase_columns.push_back(column);
      }
    }
    tiling.span = tiling.columns() + rows_.most_shift * tiling.pitch + columns_.most_shift;
    tiling.chunks = ceil_divide(problem_.channels_per_group(), tiling.chunk_channels) * problem_.filter[0];
    for (int64_t pair = 0; pair < tiling.chunk_channels / kDepth; ++pair) {
      for (int64_t r = 0; r < problem_.filter[1]; ++r) {
        for (int64_t s = 0; s < problem_.filter[2]; ++s) {
          const int64_t phase =
              rows_.phase_of[r] * static_cast<int64_t>(columns_.phases.size()) + columns_.phase_of[s];
          tiling.step_places.push_back(2 * pair * tiling.bundle_places() + phase * tiling.span +
                                       rows_.shift_of[r] * tiling.pitch + columns_.shift_of[s]);
        }
      }
    }
    tiling.steps = static_cast<int64_t>(tiling.step_places.size());
    tiling.group_steps = ceil_divide(tiling.steps, ceil_divide(tiling.steps, kMostStepsOfGroup));
    tiling.filter_blocks = ceil_divide(problem_.filters_per_group(), tiling.row_sets * kRows);
    const int64_t lines = problem_.batch * tiling.strips * problem_.output[0] * tiling.rows;
    // Behind the last output row of the last slice there is none.
    tiling.image_tiles =
        ceil_divide((lines - tiling.rows + problem_.output[1]) * tiling.pitch, tiling.columns());
    // Descriptors of matrices have 14 bits for addresses and distances.
    if (tiling.bundle_places() >= 1 << 14) return false;
    return places(tiling);
  }

  // Gives shared memory its parts; as many stages as there is room for, of images first two, then of weights.
  bool places(Tiling& tiling) const {
    const int64_t most = device_.shared_memory_per_block;
    const int64_t all_groups = tiling.chunks * ceil_divide(tiling.steps, tiling.group_steps);
    const auto fits = [&](int image_stages, int weight_stages) {
      if (image_stages > std::min<int64_t>(kMostImageStages, std::max<int64_t>(2, tiling.chunks + 1)))
        return false;
      if (weight_stages > std::min<int64_t>(kMostWeightStages, std::max<int64_t>(2, all_groups + 1)))
        return false;
      SharedLayout block(128, most);
      SharedOffsets& shared = tiling.shared;
      shared.images = block.place<unsigned char>(image_stages * tiling.image_stage_bytes());
      shared.weights = block.place<unsigned char>(weight_stages * tiling.weight_stage_bytes());
      shared.sources = block.place<PixelSource>(tiling.bundle_places());
      shared.outputs = block.place<int>(int64_t{kConsumerWarpgroups} * tiling.tiles * kTileColumns);
      shared.results = block.place<float>(kConsumers / 32 * kStagedFloats);
      shared.low_chunks = block.place<LowChunk>(kMostLowWindows * tiling.chunks);
      shared.state = block.place<BlockState>(1);
      if (block.end() > most) return false;
      tiling.image_stages = image_stages, tiling.weight_stages = weight_stages;
      tiling.shared_bytes = block.end();
      return true;
    };
    if (!fits(2, 2)) return false;
    for (bool grows = true; grows;) {
      grows = fits(tiling.image_stages + 1, tiling.weight_stages + 1) ||
              fits(tiling.image_stages, tiling.weight_stages + 1) ||
              fits(tiling.image_stages + 1, tiling.weight_stages);
    }
    return fits(tiling.image_stages, tiling.weight_stages);
  }

  int64_t size() const { return size_of(problem_.type); }

  // Nanoseconds, by arithmetic; its constants, cycles, fitted by hand to what the layers of the suites
  // many-channels, one-d and three-d took on an H200 (benchmarks/many_channels.md says how far off it is).
  double cost(const Tiling& tiling) const {
    constexpr double kNanosecond = 1.7;  // cycles
    const double chunks = static_cast<double>(tiling.chunks);
    // A product of 64 x 8 x 16 takes four cycles at least.
    const double multiplying =
        150 + 1.6 * 4 * kConsumerWarpgroups * static_cast<double>(tiling.steps) * tiling.tiles;
    const double converting = 700 + 1500 * static_cast<double>(tiling.batches());
    const double storing = static_cast<double>(tiling.columns() * tiling.row_sets * kRows) * 4 / 12;
    const double work = chunks * std::max(multiplying, converting) + storing + 3000;
    const double waves = std::ceil(static_cast<double>(tiling.works(problem_)) / device_.multiprocessors);
    const double bytes = static_cast<double>(
        size() * problem_.batch *
        (problem_.in_channels * problem_.input_size() + problem_.out_channels * problem_.output_size()));
    // A block's first chunk is waited for; the kernel before prepares the weights.
    return std::max(5000 + (converting + waves * work) / kNanosecond, 3.5e-4 * bytes);
  }

  const ConvProblem& problem_;
  const Device& device_;
  const AxisTaps rows_, columns_;
};

}  // namespace

std::optional<Tiling> best_tiling(const ConvProblem& problem, const Device& device) {
  return Tiler(problem, device).best();
}

}  // namespace convswap::many_channels
