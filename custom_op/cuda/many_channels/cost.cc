// Chooses the tiling of many_channels with the lowest estimated time, without measuring.

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <span>
#include <utility>

#include "conv/arithmetic.h"
#include "cuda/costs/cost_table.h"
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
    return with_offsets(std::move(best));
  }

  std::vector<Tiling> cheapest() const {
    std::map<std::array<int64_t, 3>, Tiling> best_by_kind;
    for_each([&](const Tiling& tiling) {
      Tiling& best = best_by_kind[{tiling.accumulator_tiles, tiling.k_tile_channels, tiling.splits}];
      if (tiling.cost < best.cost) best = tiling;
    });
    std::vector<Tiling> all;
    for (auto& [kind, tiling] : best_by_kind) all.push_back(with_offsets(std::move(tiling)));
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
              tiling.cost = cost_of(problem_, device_, tiling);
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
    tiling.row_stride_phases = static_cast<int64_t>(rows_.stride_phases.size());
    tiling.column_stride_phases = static_cast<int64_t>(columns_.stride_phases.size());
    const int64_t overhang = rows_.max_shift * tiling.pitch + columns_.max_shift;
    tiling.stride_phase_vectors = tiling.tile_positions() + overhang;
    tiling.prepared_stride_phase_vectors =
        tiling.output_tiles_per_prepared_tile * tiling.tile_positions() + overhang;
    tiling.k_tiles = ceil_divide(problem_.channels_per_group(), tiling.k_tile_channels) * problem_.filter[0];
    tiling.steps = tiling.k_tile_channels / kWgmmaK * problem_.filter[1] * problem_.filter[2];
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

  // Returns the tiling with the vectors that the estimate does not need.
  Tiling with_offsets(Tiling tiling) const {
    for (const int64_t row : rows_.stride_phases) {
      for (const int64_t column : columns_.stride_phases) {
        tiling.stride_phase_rows.push_back(row), tiling.stride_phase_columns.push_back(column);
      }
    }
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
    return tiling;
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

  const ConvProblem& problem_;
  const Device& device_;
  const AxisTaps rows_, columns_;
};

// The estimated time of a tiling. `prepare` and `kernel` run one after the other. Work tiles run in waves,
// one on each multiprocessor.
class Estimate {
 public:
  Estimate(const ConvProblem& problem, const Device& device, const Tiling& tiling)
      : problem_(problem),
        device_(device),
        tiling_(tiling),
        costs_(costs_of(device).many_channels),
        multiprocessors_(std::max(1, device.multiprocessors)) {}

  double nanoseconds() const {
    const double work_tiles = to_double(tiling_.work_tiles(problem_)) / multiprocessors_;
    const double blocks = std::ceil(work_tiles) * work_tile();
    return rounds() * launch() + std::min(1.0, work_tiles) * costs_.full + preparing() +
           overlapped(blocks, (written_bytes() + missed_bytes() + stored_bytes()) / costs_.memory) +
           combining();
  }

 private:
  // Time of two activities that overlap in part.
  static double overlapped(double a, double b) { return std::sqrt(a * a + b * b); }

  bool is_float32() const { return problem_.type == ElementType::float32; }
  int64_t size() const { return bytes_per_element(problem_.type); }
  double rounds() const { return to_double(ceil_divide(tiling_.prepared_tiles, tiling_.round_tiles)); }
  double launch() const { return costs_.launch + (is_float32() ? costs_.scaled : 0); }

  // Time of `prepare`: memory's, and that of the vectors that each thread converts one after the other.
  double preparing() const {
    const int64_t pairs = tiling_.round_tiles * problem_.group;
    const int64_t part_count = tiling_.k_tile_parts(device_, pairs);
    const int64_t resident = int64_t{device_.multiprocessors} * (kPrepareThreadsPerSm / kPrepareThreads);
    const int64_t waves = ceil_divide(pairs * part_count, std::max<int64_t>(1, resident));
    const int64_t thread_vectors =
        ceil_divide(tiling_.k_tiles, part_count) *
        ceil_divide(tiling_.prepared_k_tile_bytes() / kVectorBytes, int64_t{kPrepareThreads});
    return (read_bytes() + written_bytes()) / costs_.memory +
           rounds() * to_double(waves * thread_vectors) * costs_.vector;
  }

  // Bytes of x that taps read. Of rows that no tap reads, memory still reads sectors that other rows share.
  double read_bytes() const {
    const double depths = std::min(1.0, to_double(problem_.filter[0]) / to_double(problem_.stride[0]));
    double rows = to_double(tiling_.row_stride_phases) / to_double(problem_.stride[1]);
    if (rows < 1) rows = std::min(1.0, rows * (1 + kSector / to_double(problem_.input[2] * size())));
    return to_double(size() * problem_.batch * problem_.in_channels * problem_.input_size()) * depths * rows;
  }

  double written_bytes() const {
    return to_double(tiling_.prepared_tiles * tiling_.prepared_k_tiles(problem_)) *
           to_double(tiling_.prepared_k_tile_bytes());
  }

  // Bytes that blocks read from memory again: each filter block reads the pixels of its output tile, which
  // the cache holds as far as the output tiles of all blocks fit.
  double missed_bytes() const {
    const double tile_bytes = to_double(tiling_.k_tiles * tiling_.pixel_stage_bytes());
    const double cached = std::min(multiprocessors_ * tile_bytes, written_bytes());
    const double missed = std::max(0.0, 1 - device_.l2_cache_bytes / cached);
    return missed * (to_double(tiling_.work_tiles(problem_) * k_tiles_per_work_tile()) *
                         to_double(tiling_.pixel_stage_bytes()) -
                     written_bytes());
  }

  double stored_bytes() const {
    const double bytes = to_double(size() * problem_.batch * problem_.out_channels * problem_.output_size());
    return bytes *
           ((stores_half_sectors() ? 1 : costs_.unaligned) + (problem_.epilogue.has_residual ? 1 : 0));
  }

  // True if a warp's results at neighbouring positions begin and end at half sectors of memory.
  bool stores_half_sectors() const {
    const auto is_aligned = [&](int64_t elements) { return elements * size() % kHalfSector == 0; };
    const bool has_gaps =
        tiling_.strips > 1 || tiling_.pitch > problem_.output[2] || tiling_.slice_rows > problem_.output[1];
    if (!has_gaps) return is_aligned(problem_.output_size());
    return is_aligned(problem_.output[2]) && is_aligned(tiling_.strip_columns) && is_aligned(tiling_.pitch);
  }

  int64_t k_tiles_per_work_tile() const { return ceil_divide(tiling_.k_tiles, tiling_.splits); }

  // Time of a work tile in a block: its consumers multiply and store while its producers load.
  double work_tile() const {
    const double k_tiles = to_double(k_tiles_per_work_tile());
    const double multiplying = to_double(tiling_.steps * tiling_.accumulator_tiles) *
                               (tiling_.uses_wgmma ? costs_.wgmma : costs_.mma);
    const double bytes = to_double(tiling_.pixel_stage_bytes() + tiling_.steps * kStepUnits * 16);
    const double loading = k_tiles * (bytes * multiprocessors_ / costs_.load + costs_.k_tile);
    // Two wgmma groups in flight keep their pixel stages.
    const int hiding_stages = tiling_.steps <= tiling_.stage_steps ? 4 : 3;
    return overlapped(k_tiles * multiplying + costs_.work_tile + storing(), loading) +
           (tiling_.pixel_stages < hiding_stages ? costs_.exposed * loading : 0);
  }

  // Time in which a block's warps store their results, 32 positions at a time.
  double storing() const {
    double part = costs_.store;
    if (tiling_.splits == 1) {
      if (problem_.epilogue.has_residual) part += rows() * costs_.residual;
      part += rows() * kWarpsPerScheduler * activation_cycles(problem_.epilogue, costs_of(device_)) *
              costs_.activation;
    }
    const int64_t columns = int64_t{tiling_.accumulator_tiles} * kAccumulatorTileColumns;
    return part * to_double(ceil_divide(columns, int64_t{kStagedPositions}));
  }

  // Rows of the warp with most filters, in eights, in the mean over the filter blocks.
  double rows() const {
    const int64_t filters = problem_.filters_per_group();
    const int64_t last_rows = std::min<int64_t>(kWarpRows, round_up(filters % kWgmmaM, int64_t{8}));
    return to_double(filters / kWgmmaM * kWarpRows + last_rows) / to_double(tiling_.filter_blocks);
  }

  double combining() const {
    if (tiling_.splits == 1) return 0;
    return costs_.split + to_double(problem_.result_elements()) / multiprocessors_ * costs_.sum;
  }

  static constexpr double kSector = 32;       // bytes
  static constexpr int64_t kHalfSector = 16;  // bytes
  static constexpr int kWarpsPerScheduler = kConsumerThreads / 32 / 4;

  const ConvProblem& problem_;
  const Device& device_;
  const Tiling& tiling_;
  const decltype(Costs::many_channels)& costs_;
  const double multiprocessors_;
};

}  // namespace

double cost_of(const ConvProblem& problem, const Device& device, const Tiling& tiling) {
  return Estimate(problem, device, tiling).nanoseconds();
}

std::optional<Tiling> best_tiling(const ConvProblem& problem, const Device& device) {
  return Tiler(problem, device).best();
}

std::vector<Tiling> cheapest_tilings(const ConvProblem& problem, const Device& device) {
  return Tiler(problem, device).cheapest();
}

}  // namespace convswap::many_channels
