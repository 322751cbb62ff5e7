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

// Planes of no more bytes are copied together, image by image: a copy has 16 bytes at least.
constexpr int64_t kMostBytesOfPlane = 256;

// The taps of one spatial axis: what of the padded input they read.
struct AxisTaps {
  std::vector<int64_t> phases;    // that any tap reads, by their first row or column; 0 comes first
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
    tiling.pitch = tiling.strips == 1 ? columns_.least_pitch : tiling.strip_columns + columns_.most_shift;
    if (ceil_divide(width, tiling.strip_columns) != tiling.strips) return false;
    tiling.rows = rows_.least_pitch;
    tiling.phases_across = static_cast<int64_t>(columns_.phases.size());
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
          const int64_t phase = rows_.phase_of[r] * tiling.phases_across + columns_.phase_of[s];
          tiling.step_places.push_back(2 * pair * tiling.bundle_places() + phase * tiling.span +
                                       rows_.shift_of[r] * tiling.pitch + columns_.shift_of[s]);
        }
      }
    }
    tiling.steps = static_cast<int64_t>(tiling.step_places.size());
    tiling.filter_blocks = ceil_divide(problem_.filters_per_group(), tiling.row_sets * kRows);
    const int64_t lines = problem_.batch * tiling.strips * problem_.output[0] * tiling.rows;
    // Behind the last output row of the last slice there is none.
    tiling.image_tiles =
        ceil_divide((lines - tiling.rows + problem_.output[1]) * tiling.pitch, tiling.columns());
    // Descriptors of matrices have 14 bits for addresses and distances.
    if (tiling.bundle_places() >= 1 << 14) return false;
    if (!stages_pixels(tiling)) return false;
    for (const int64_t most_steps : {kMostStepsOfGroup, kFewStepsOfGroup}) {
      tiling.group_steps = ceil_divide(tiling.steps, ceil_divide(tiling.steps, most_steps));
      if (places(tiling)) return true;
    }
    return false;
  }

  // Decides how the pixels of a chunk lie in a stage (runs.cuh).
  bool stages_pixels(Tiling& tiling) const {
    const int64_t phases_down = static_cast<int64_t>(rows_.phases.size());
    // How many lines and slices a tile may touch.
    const int64_t lines = (tiling.pitch + tiling.span - 2) / tiling.pitch + 1;
    const int64_t slices = (tiling.rows + lines - 2) / tiling.rows + 1;
    const int64_t channel_bytes = problem_.input_size() * size();
    const auto staged = [&](int64_t elements) {
      return round_up(elements * size(), kGranuleBytes) + kRunGap;
    };
    tiling.runs = slices;
    int64_t bytes = 0;  // of a channel, or of all
    if (tiling.strips == 1 && problem_.input[0] == 1 && problem_.filter[0] == 1 && problem_.output[0] == 1 &&
        channel_bytes <= kMostBytesOfPlane) {
      tiling.run_kind = RunKind::images;
      tiling.run_bytes = staged(tiling.chunk_channels * problem_.input_size());
      bytes = slices * tiling.run_bytes;
    } else if (tiling.strips == 1 && tiling.rows > 1 && phases_down == problem_.stride[1]) {
      tiling.run_kind = RunKind::slices;
      const int64_t most_rows = std::min(slices * problem_.input[1], lines * problem_.stride[1]);
      const int64_t rows_of_slice = std::clamp<int64_t>(
          (tiling.rows - 1) * problem_.stride[1] + std::ranges::max(rows_.phases) - problem_.pad_begin[1] + 1,
          0, problem_.input[1]);
      tiling.run_bytes = staged(rows_of_slice * problem_.input[2]);
      bytes = most_rows * problem_.input[2] * size() + slices * (kGranuleBytes + kRunGap);
    } else {
      tiling.run_kind = RunKind::rows;
      // A row of the input for so many places.
      const int64_t behind = std::ranges::max(columns_.phases) + 1, stride = problem_.stride[2];
      const int64_t columns =
          std::min(problem_.input[2], (std::min(tiling.pitch, tiling.span) - 1) * stride + behind);
      const int64_t all_columns =
          std::min(lines * columns, tiling.span * stride + lines * std::max<int64_t>(0, behind - stride));
      tiling.run_bytes = staged(columns);
      tiling.runs = lines * phases_down;
      // Of the last line too a run begins a whole one behind the one before.
      bytes = phases_down * (all_columns * size() + lines * (kGranuleBytes + kRunGap)) +
              (phases_down - 1) * columns * size();
    }
    bytes = round_up(bytes, kGranuleBytes);
    const bool are_apart = tiling.run_kind != RunKind::images;
    tiling.staged_channel_bytes =
        are_apart ? bytes + kGranuleBytes + channel_bytes % kGranuleBytes : channel_bytes;
    // A granule before, and what the first channel and the tap of the depth are moved by.
    tiling.pixel_stage_bytes =
        round_up((are_apart ? (tiling.chunk_channels - 1) * tiling.staged_channel_bytes : 0) + bytes +
                     3 * kGranuleBytes,
                 128);
    return tiling.pixel_stage_bytes < device_.shared_memory_per_block;
  }

  // Gives shared memory its parts; as many stages as there is room for.
  bool places(Tiling& tiling) const {
    const int64_t most = device_.shared_memory_per_block;
    const int64_t all_groups = tiling.chunks * ceil_divide(tiling.steps, tiling.group_steps);
    const auto fits = [&](int pixel_stages, int image_stages, int weight_stages) {
      if (pixel_stages > kMostPixelStages) return false;
      if (image_stages > std::min<int64_t>(kMostImageStages, std::max<int64_t>(2, tiling.chunks + 1)))
        return false;
      if (weight_stages > std::min<int64_t>(kMostWeightStages, std::max<int64_t>(2, all_groups + 1)))
        return false;
      SharedLayout block(128, most);
      SharedOffsets& shared = tiling.shared;
      shared.pixels = block.place<unsigned char>(pixel_stages * tiling.pixel_stage_bytes);
      shared.images = block.place<unsigned char>(image_stages * tiling.image_stage_bytes());
      shared.weights = block.place<unsigned char>(weight_stages * tiling.weight_stage_bytes());
      shared.sources = block.place<PixelSource>(tiling.bundle_places());
      shared.runs = block.place<StagedRun>(kTileSlots * tiling.runs);
      shared.outputs = block.place<int>(kHeadStages * tiling.columns());
      shared.results = block.place<float>(kConsumers / 32 * kStagedFloats);
      shared.low_chunks = block.place<LowChunk>(kMostLowWindows * tiling.chunks);
      shared.state = block.place<BlockState>(1);
      if (block.end() > most) return false;
      tiling.pixel_stages = pixel_stages, tiling.image_stages = image_stages,
      tiling.weight_stages = weight_stages;
      tiling.shared_bytes = block.end();
      return true;
    };
    if (!fits(kLeastPixelStages, 2, 2)) return false;
    const auto grows_by = [&](int pixel_stages, int image_stages, int weight_stages) {
      return fits(tiling.pixel_stages + pixel_stages, tiling.image_stages + image_stages,
                  tiling.weight_stages + weight_stages);
    };
    for (bool grows = true; grows;) {
      const bool has_weights = grows_by(0, 0, 1), has_pixels = grows_by(1, 0, 0);
      grows = grows_by(0, 1, 0) || has_weights || has_pixels;
    }
    return grows_by(0, 0, 0);
  }

  int64_t size() const { return size_of(problem_.type); }

  // Nanoseconds, by arithmetic; its constants, cycles, fitted to what some 130 tilings of the layers of the
  // suites many-channels and one-d took on an H200 (benchmarks/many_channels.md says how far off it is).
  double cost(const Tiling& tiling) const {
    constexpr double kNanosecond = 1.7;  // cycles
    const double chunks = static_cast<double>(tiling.chunks);
    const double pairs = static_cast<double>(tiling.chunk_channels / kDepth);
    // What is done for a chunk: a product of 64 x 8 x 16 takes four cycles at least, for each of the
    // warpgroups.
    const double multiplying = static_cast<double>(tiling.steps) * (70 + 9.7 * tiling.tiles);
    const double converting = 1270 + 3.4 * pairs * static_cast<double>(tiling.bundle_places());
    // Copies as small as rows follow each other slowly, those of strips still slower.
    const bool are_rows = tiling.run_kind == RunKind::rows && tiling.pitch <= tiling.span;
    const double loading =
        are_rows ? (tiling.strips > 1 ? 26 : 15) * static_cast<double>(tiling.runs * tiling.chunk_channels)
                 : 0;
    const double storing = 0.17 * static_cast<double>(tiling.columns() * tiling.row_sets * kRows);
    // All at the same time, but they hinder each other.
    const auto together = [](double a, double b, double c) { return std::sqrt(a * a + b * b + c * c); };
    const double work =
        together(chunks * multiplying + storing, chunks * converting + 7000, chunks * loading);
    // Of a block's first tile each waits for what comes before.
    const double first = converting + chunks * together(multiplying, converting, loading) + storing;
    const double waves = std::ceil(static_cast<double>(tiling.works(problem_)) / device_.multiprocessors);
    const double weights = static_cast<double>(size() * problem_.out_channels *
                                               problem_.channels_per_group() * problem_.filter_size());
    const double bytes = static_cast<double>(
        size() * problem_.batch *
        (problem_.in_channels * problem_.input_size() + problem_.out_channels * problem_.output_size()));
    // The kernel before prepares the weights. Of larger chunks fewer are under way.
    const double larger = 1 + 0.07 * std::log2(pairs);
    return std::max(8000 + 7e-4 * weights + (first + (waves - 1) * work) / kNanosecond, 3.5e-4 * bytes) *
           larger;
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
