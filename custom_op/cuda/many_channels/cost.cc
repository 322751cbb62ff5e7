// Chooses the tiling of many_channels with the lowest estimated time, without measuring.

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <span>
#include <utility>

#include "conv/arithmetic.h"
#include "cuda/host/arguments.h"
#include "cuda/host/estimate.h"
#include "cuda/host/shared_layout.h"
#include "cuda/many_channels/family.h"

namespace convswap::many_channels {
namespace {

// Larger inputs are prepared in rounds.
constexpr int64_t kMaxPreparedBytes = int64_t{1} << 30;
constexpr int64_t kMaxSplits = 16;
// PixelSources of a prepared tile that the kernel `prepare` keeps in shared memory.
constexpr int64_t kMaxPreparedVectors = 8000;

// Stride phases and shifts of the filter taps along one spatial axis of the padded input.
struct AxisTaps {
  std::vector<int64_t> stride_phases;    // first row or column of each that a tap reads; 0 comes first
  std::vector<int64_t> stride_phase_of;  // index of each tap's stride phase
  std::vector<int64_t> shift_of;         // distance of each tap from the output, within its stride phase
  int64_t min_pitch = 0;  // smallest pitch at which a row and the next can share the padding between them
  int64_t max_shift = 0;
};

AxisTaps taps_of(const ConvProblem& problem, int axis) {
  AxisTaps taps;
  const int64_t stride = problem.stride[axis], pad = problem.pad_begin[axis];
  taps.min_pitch = problem.output[axis];
  for (int64_t tap = 0; tap < problem.filter[axis]; ++tap) {
    const int64_t offset = tap * problem.dilation[axis], stride_phase = offset % stride,
                  shift = offset / stride;
    auto found = std::find(taps.stride_phases.begin(), taps.stride_phases.end(), stride_phase);
    if (found == taps.stride_phases.end())
      found = taps.stride_phases.insert(taps.stride_phases.end(), stride_phase);
    taps.stride_phase_of.push_back(found - taps.stride_phases.begin());
    taps.shift_of.push_back(shift);
    taps.max_shift = std::max(taps.max_shift, shift);
    // Padding of the stride phase before the data, and the end of the data.
    const int64_t before = pad > stride_phase ? ceil_divide(pad - stride_phase, stride) : 0;
    const int64_t end = problem.input[axis] + pad > stride_phase
                            ? ceil_divide(problem.input[axis] + pad - stride_phase, stride)
                            : 0;
    taps.min_pitch = std::max({taps.min_pitch, end, problem.output[axis] + shift - before});
  }
  return taps;
}

class Tiler {
 public:
  Tiler(const ConvProblem& problem, const Device& device)
      : problem_(problem), device_(device), rows_(taps_of(problem, 1)), columns_(taps_of(problem, 2)) {}

  std::optional<Tiling> best() const {
    Tiling best;
    for_each([&](const Tiling& tiling) {
      if (tiling.cost < best.cost) best = tiling;
    });
    if (best.accumulator_tiles == 0) return std::nullopt;
    return best;
  }

  std::vector<Tiling> cheapest() const {
    std::map<std::array<int64_t, 3>, Tiling> best_by_kind;
    for_each([&](const Tiling& tiling) {
      Tiling& best = best_by_kind[{tiling.accumulator_tiles, tiling.k_tile_channels, tiling.splits}];
      if (tiling.cost < best.cost) best = tiling;
    });
    std::vector<Tiling> all;
    for (auto& [kind, tiling] : best_by_kind) all.push_back(std::move(tiling));
    std::ranges::stable_sort(all, {}, &Tiling::cost);
    return all;
  }

 private:
  // Calls visit(tiling) for each tiling that fits, with its cost.
  template <typename Visit>
  void for_each(Visit visit) const {
    const int64_t taps = problem_.filter[1] * problem_.filter[2];
    if (taps > kMaxSteps || rows_.stride_phases.size() * columns_.stride_phases.size() > kMaxStridePhases)
      return;
    for (const int64_t strips : {1, 2, 3, 4, 5, 6, 8, 10, 12, 16}) {
      if (strips > 1 && strips > ceil_divide(problem_.output[2], 16)) break;
      for (int64_t pairs = 1; pairs <= 4; pairs *= 2) {
        if (pairs > 1 && (pairs * taps > kMaxSteps || pairs * kWgmmaK >= 2 * problem_.channels_per_group())) {
          break;
        }
        for (const Instance& instance :
             uses_wgmma() ? std::span<const Instance>(kInstances) : kMmaInstances) {
          // The output tiles of a larger prepared tile share vectors. With several stride phases or channel
          // blocks, larger prepared tiles would need many TMA loads and take longer to prepare and to load.
          for (const int64_t output_tiles_per_prepared_tile : {1, 2, 4}) {
            Tiling tiling;
            tiling.uses_wgmma = uses_wgmma();
            tiling.accumulator_tiles = instance.accumulator_tiles;
            tiling.output_tiles_per_prepared_tile = output_tiles_per_prepared_tile;
            tiling.strips = strips;
            tiling.k_tile_channels = pairs * kWgmmaK;
            if (!complete(tiling)) break;
            // Splits are for problems with fewer work tiles than multiprocessors.
            for (; tiling.splits <= kMaxSplits && tiling.splits <= tiling.k_tiles; tiling.splits *= 2) {
              if (tiling.splits > 1 && tiling.work_tiles(problem_) > device_.multiprocessors) break;
              tiling.cost = cost(tiling);
              visit(tiling);
            }
            if (rows_.max_shift + columns_.max_shift == 0 || pairs * tiling.stride_phases() > 1) break;
          }
        }
      }
    }
  }

  // Computes the members that follow from the chosen ones. Returns false if the tiling does not fit into
  // shared memory.
  bool complete(Tiling& tiling) const {
    const int64_t width = problem_.output[2];
    tiling.strip_columns = ceil_divide(width, tiling.strips);
    tiling.pitch = tiling.strips == 1 ? columns_.min_pitch : tiling.strip_columns + columns_.max_shift;
    if (ceil_divide(width, tiling.strip_columns) != tiling.strips) return false;
    tiling.slice_rows = rows_.min_pitch;
    tiling.column_stride_phases = static_cast<int64_t>(columns_.stride_phases.size());
    for (const int64_t row : rows_.stride_phases) {
      for (const int64_t column : columns_.stride_phases) {
        tiling.stride_phase_rows.push_back(row), tiling.stride_phase_columns.push_back(column);
      }
    }
    const int64_t overhang = rows_.max_shift * tiling.pitch + columns_.max_shift;
    tiling.stride_phase_vectors = tiling.tile_positions() + overhang;
    tiling.prepared_stride_phase_vectors =
        tiling.output_tiles_per_prepared_tile * tiling.tile_positions() + overhang;
    tiling.k_tiles = ceil_divide(problem_.channels_per_group(), tiling.k_tile_channels) * problem_.filter[0];
    for (int64_t pair = 0; pair < tiling.k_tile_channels / kWgmmaK; ++pair) {
      for (int64_t r = 0; r < problem_.filter[1]; ++r) {
        for (int64_t s = 0; s < problem_.filter[2]; ++s) {
          const int64_t stride_phase =
              rows_.stride_phase_of[r] * static_cast<int64_t>(columns_.stride_phases.size()) +
              columns_.stride_phase_of[s];
          tiling.step_offsets.push_back(2 * pair * tiling.channel_block_vectors() +
                                        stride_phase * tiling.stride_phase_vectors +
                                        rows_.shift_of[r] * tiling.pitch + columns_.shift_of[s]);
        }
      }
    }
    tiling.steps = static_cast<int64_t>(tiling.step_offsets.size());
    tiling.filter_blocks = ceil_divide(problem_.filters_per_group(), int64_t{kWgmmaM});
    const int64_t lines = problem_.batch * tiling.strips * problem_.output[0] * tiling.slice_rows;
    // No positions follow the last output row of the last slice.
    tiling.prepared_tiles = ceil_divide((lines - tiling.slice_rows + problem_.output[1]) * tiling.pitch,
                                        tiling.output_tiles_per_prepared_tile * tiling.tile_positions());
    // Shared-memory descriptors of wgmma have 14 bits for addresses and distances.
    if (tiling.channel_block_vectors() >= 1 << 14) return false;
    if (tiling.prepared_stride_phase_vectors * tiling.stride_phases() > kMaxPreparedVectors) return false;
    const int64_t tile_bytes = tiling.prepared_k_tiles(problem_) * tiling.prepared_k_tile_bytes();
    tiling.round_tiles =
        std::min(tiling.prepared_tiles, std::max<int64_t>(1, kMaxPreparedBytes / tile_bytes));
    const int64_t max_stage_steps = uses_wgmma() ? kMaxStepsPerStage : kMaxMmaStepsPerStage;
    tiling.stage_steps = ceil_divide(tiling.steps, ceil_divide(tiling.steps, max_stage_steps));
    if (lay_out_shared_memory(tiling)) return true;
    if (uses_wgmma()) return false;
    tiling.stage_steps = ceil_divide(tiling.steps, ceil_divide(tiling.steps, int64_t{kMaxStepsPerStage}));
    return lay_out_shared_memory(tiling);
  }

  // Lays out shared memory with as many stages as fit.
  bool lay_out_shared_memory(Tiling& tiling) const {
    const int64_t limit = device_.shared_memory_per_block;
    const int64_t all_weight_stages = tiling.k_tiles * ceil_divide(tiling.steps, tiling.stage_steps);
    const auto fits = [&](int pixel_stages, int weight_stages) {
      if (pixel_stages > std::min<int64_t>(kMaxPixelStages, std::max<int64_t>(3, tiling.k_tiles + 1)))
        return false;
      if (weight_stages >
          std::min<int64_t>(kMaxWeightStages, std::max<int64_t>(kMinWeightStages, all_weight_stages + 1)))
        return false;
      SharedLayout block(128, limit);
      SharedOffsets& shared = tiling.shared;
      shared.pixels = block.place<unsigned char>(pixel_stages * tiling.pixel_stage_bytes());
      shared.weights = block.place<unsigned char>(weight_stages * tiling.weight_stage_bytes());
      shared.output_offsets = block.place<int>(kTileInfoStages * tiling.tile_positions());
      shared.staging = block.place<float>(kConsumerThreads / 32 * kStagedFloats);
      shared.state = block.place<BlockState>(1);
      if (block.end() > limit) return false;
      tiling.pixel_stages = pixel_stages, tiling.weight_stages = weight_stages;
      tiling.shared_bytes = block.end();
      return true;
    };
    // A pixel stage is released when two later wgmma groups are in flight. mma.sync keeps none in flight.
    if (!fits(uses_wgmma() && tiling.steps <= tiling.stage_steps ? 3 : 2,
              uses_wgmma() ? kMinWeightStages : kMinMmaWeightStages)) {
      return false;
    }
    const auto grows_by = [&](int pixel_stages, int weight_stages) {
      return fits(tiling.pixel_stages + pixel_stages, tiling.weight_stages + weight_stages);
    };
    for (bool grows = true; grows;) {
      const bool grows_weights = grows_by(0, 1);
      grows = grows_by(1, 0) || grows_weights;
    }
    return grows_by(0, 0);
  }

  // Only cards of compute capability 9.0 have wgmma.
  bool uses_wgmma() const { return device_.compute_capability == 90; }

  int64_t size() const { return bytes_per_element(problem_.type); }

  // Nanoseconds, by arithmetic, with prepared weights. The constants are fitted to what all alternatives of
  // the suites' layers took on an H200 (benchmarks/many_channels.md, version 10), but for kPlace; bands,
  // splits, kApart and kFilling later to the times of rule-* in benchmarks/h200.json. What a block does for a
  // work, and what memory does, adds up rather than overlaps.
  double cost(const Tiling& tiling) const {
    constexpr double kNanosecond = 1.75;  // cycles
    constexpr double kBands = 7000, kBandsOf16Bits = 5950, kSplits = 4000, kPlace = 700, kApart = 3.0;
    constexpr int64_t kHalfSector = 16;                                       // bytes
    constexpr double kPrepared = 6450, kCopied = 2200, kStored = 3850;        // bytes of a nanosecond
    constexpr double kTile = 4.4, kChunk = 133, kWork = 405, kFilling = 110;  // cycles
    constexpr double kLoadedBytes = 48;                                       // of a cycle
    const double bands = to_double(ceil_divide(tiling.prepared_tiles, tiling.round_tiles)) *
                         (size() == 4 ? kBands : kBandsOf16Bits);
    // Of strided rows those are not read that no tap reads.
    const double x_bytes = to_double(size() * problem_.batch * problem_.in_channels * problem_.input_size()) *
                           to_double(static_cast<int64_t>(rows_.stride_phases.size())) /
                           to_double(problem_.stride[1]);
    const double y_bytes =
        to_double(size() * problem_.batch * problem_.out_channels * problem_.output_size());
    const double prepared = to_double(tiling.prepared_tiles * tiling.prepared_k_tiles(problem_)) *
                            to_double(tiling.prepared_k_tile_bytes());
    // Of few chunks not all of memory's rate can be asked for: a thread waits for each of its places.
    const double rounds = std::ceil(to_double(tiling.prepared_tiles * tiling.prepared_k_tiles(problem_)) /
                                    (device_.multiprocessors * (kPrepareThreadsPerSm / kPrepareThreads)));
    const double waiting =
        kPlace * rounds * to_double(tiling.prepared_k_tile_bytes()) / (kVectorBytes * kPrepareThreads);
    // Of a strided row each thread takes what lies apart.
    const double loaded = x_bytes * (problem_.stride[2] > 1 ? kApart : 1);
    const double preparing = std::max((loaded + prepared) / kPrepared, waiting);
    constexpr double kMmaTile = 13;  // by mma.sync instead of wgmma
    double multiplying = to_double(tiling.steps) * (tiling.uses_wgmma ? kTile : kMmaTile) *
                         to_double(tiling.accumulator_tiles);
    if (tiling.uses_wgmma) {
      // Fewer works of wide tiles overlap less.
      multiplying *= 1 + 0.34 * std::max(tiling.accumulator_tiles - 20, 0) / 12;
      // Two groups keep their stages: there is hardly a chunk ahead.
      if (tiling.pixel_stages < (tiling.steps <= tiling.stage_steps ? 4 : 3)) multiplying *= 1.27;
    }
    const double loading =
        to_double(tiling.pixel_stage_bytes() + tiling.steps * kStepUnits * 16) / kLoadedBytes;
    const int64_t k_tiles_per_work_tile = ceil_divide(tiling.k_tiles, tiling.splits);
    // One chunk or two are not enough to go on with while results are stored.
    const double filling = k_tiles_per_work_tile <= 2 ? kFilling * to_double(tiling.accumulator_tiles) : 0;
    const double work_tile =
        to_double(k_tiles_per_work_tile) * (multiplying + loading + kChunk) + kWork + filling;
    const double work_tiles = std::ceil(to_double(tiling.work_tiles(problem_)) / device_.multiprocessors);
    // Where places are no outputs, or planes no whole half sectors of memory, results begin anywhere in a
    // sector.
    const bool whole_half_sectors =
        rows_.max_shift + columns_.max_shift == 0 && problem_.output_size() * size() % kHalfSector == 0;
    const double storing = y_bytes * (whole_half_sectors ? 1 : 2) / kStored + prepared / kCopied;
    const double splits = tiling.splits == 1 ? 0 : kSplits + to_double(tiling.splits) * y_bytes / kStored;
    return bands + preparing + work_tiles * work_tile / kNanosecond + storing + activating() + splits;
  }

  // Activations that do not only limit, in nanoseconds: for a result of a multiprocessor where they are
  // called (10 layers' 1.3 to 2), and what 40 layers took longer with those that are not. There a warp has 16
  // filters, which it takes by eights, and the others of its tile wait for the one with most.
  double activating() const {
    constexpr double kCalled = 1.6, kSiLU = 0.15, kHardSwish = 0.115;
    const Epilogue& epilogue = problem_.epilogue;
    if (only_clamps(epilogue)) return 0;
    const int64_t filters = problem_.filters_per_group();
    const int64_t last_block_filters = filters % kWgmmaM;
    const int64_t waited_for =
        filters - last_block_filters +
        kWgmmaM / kWarpRows * std::min<int64_t>(kWarpRows, round_up(last_block_filters, int64_t{8}));
    const double positions =
        to_double(problem_.batch * problem_.group * problem_.output_size()) / device_.multiprocessors;
    if (!is_swish(epilogue)) return kCalled * positions * to_double(filters);
    const double each = epilogue.activation == Activation::silu ? kSiLU : kHardSwish;
    return each * positions * to_double(waited_for);
  }

  const ConvProblem& problem_;
  const Device& device_;
  const AxisTaps rows_, columns_;
};

}  // namespace

std::optional<Tiling> best_tiling(const ConvProblem& problem, const Device& device) {
  return Tiler(problem, device).best();
}

std::vector<Tiling> cheapest_tilings(const ConvProblem& problem, const Device& device) {
  return Tiler(problem, device).cheapest();
}

}  // namespace convswap::many_channels
