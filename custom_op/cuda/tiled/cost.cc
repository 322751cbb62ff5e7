#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>

#include "conv/arithmetic.h"
#include "cuda/costs/cost_table.h"
#include "cuda/host/candidates.h"
#include "cuda/host/estimate.h"
#include "cuda/tiled/arguments.h"
#include "cuda/tiled/family.h"

namespace convswap::tiled {
namespace {

constexpr int kWarpSize = 32;
constexpr int kMaxSplits = 8, kMaxThreadsAcrossFilters = 64, kMaxThreadsPerAxis = 16;
// Largest shared memory of a block with which a multiprocessor still holds three blocks, of which some
// compute while others wait.
constexpr int64_t kBytesForThreeBlocks = 72 * 1024;

// Taps of a filter in one plane; and channels per group times the taps along the depth.
int64_t taps_of_plane(const ConvProblem& problem) { return problem.filter[1] * problem.filter[2]; }
int64_t depth_channels(const ConvProblem& problem) {
  return problem.channels_per_group() * problem.filter[0];
}

// Bytes of a staged element, and of an accumulator.
int64_t accumulator_bytes(const ConvProblem& problem) { return problem.type == ElementType::float64 ? 8 : 4; }

// The least row pitch with which a warp's loads have no bank conflicts. The warp reads `across` adjacent
// elements of rows that are `step` rows apart.
int window_pitch(int64_t width, int across, int64_t step) {
  for (int64_t pitch = width; across < 32 && pitch < width + 32; ++pitch) {
    if (step * pitch % (2 * across) == across) return static_cast<int>(pitch);
  }
  return static_cast<int>(width);
}

// Sets the window: the receptive field of the tile in one channel. Returns false if it does not fit.
bool set_window(const ConvProblem& problem, const Device& device, Tiling& tiling) {
  const auto reach = [&](int axis, int extent) {
    return (extent - 1) * problem.stride[axis] + (problem.filter[axis] - 1) * problem.dilation[axis] + 1;
  };
  const int64_t height = reach(1, tiling.rows), width = reach(2, tiling.columns);
  const int64_t max_elements = device.shared_memory_per_block / accumulator_bytes(problem);
  if (width > max_elements || height > max_elements) return false;
  const int pitch = window_pitch(width, tiling.columns / tiling.thread_columns, 2 * problem.stride[1]);
  // A multiple of four elements, so that the weights after the window are aligned to 16 bytes.
  const int64_t plane = ceil_divide(height * pitch, 4) * 4;
  if (plane > max_elements) return false;
  tiling.window_height = static_cast<int>(height), tiling.window_width = static_cast<int>(width);
  tiling.window_pitch = pitch, tiling.window_plane = static_cast<int>(plane);
  return true;
}

// Sets the channels of a stage: all, or as many as leave shared memory for other blocks. Returns false if not
// even one channel fits.
bool set_stage(const ConvProblem& problem, const Device& device, Tiling& tiling) {
  const int64_t max_elements = device.shared_memory_per_block / accumulator_bytes(problem);
  // An odd number of quads: eight taps of four filters then fall into 32 banks.
  tiling.weight_pitch = static_cast<int>((ceil_divide(tiling.filters, 4) | 1) * 4);
  const int64_t channel_elements = tiling.window_plane + taps_of_plane(problem) * tiling.weight_pitch;
  if (channel_elements > max_elements) return false;
  const int64_t stage_elements = std::max(
      std::min<int64_t>(max_elements, kBytesForThreeBlocks / accumulator_bytes(problem)), channel_elements);
  tiling.channels = static_cast<int>(std::min(depth_channels(problem), stage_elements / channel_elements));
  tiling.stage_bytes = static_cast<int>(tiling.channels * channel_elements * accumulator_bytes(problem));
  tiling.blocks = problem.batch * problem.output[0] * ceil_divide(problem.output[1], tiling.rows) *
                  ceil_divide(problem.output[2], tiling.columns) * problem.group *
                  ceil_divide(problem.filters_per_group(), tiling.filters);
  return true;
}

// Sets the shared memory of a block, for a stage and then for the partial sums. Returns false if the sums do
// not fit.
bool set_shared_bytes(const ConvProblem& problem, const Device& device, Tiling& tiling) {
  const int64_t sums = int64_t{tiling.splits} * tiling.filters * tiling.rows * tiling.columns;
  const int64_t bytes = std::max<int64_t>(tiling.stage_bytes, sums * accumulator_bytes(problem));
  tiling.shared_bytes = static_cast<int>(bytes);
  return bytes <= device.shared_memory_per_block;
}

std::span<const Instance> instances_for(const ConvProblem& problem) {
  if (problem.type == ElementType::float64) return kFloat64Instances;
  return kInstances;
}

// Computes the costs of a problem's tilings.
class Estimate {
 public:
  Estimate(const ConvProblem& problem, const Device& device)
      : costs_(costs_of(device).tiled),
        multiprocessors_(std::max(1, device.multiprocessors)),
        shared_memory_(device.shared_memory_per_multiprocessor),
        channels_(depth_channels(problem)),
        filter_rows_(channels_ * problem.filter[1]),
        taps_(to_double(problem.filter[2])),
        plane_taps_(to_double(taps_of_plane(problem))),
        outputs_(to_double(problem.batch * problem.out_channels * problem.output_size())) {
    // Hopper multiplies float64 at half the rate of float32.
    product_ = problem.type == ElementType::float64 ? 2 : 1;
    row_ = costs_.row * (is_unrolled(problem) ? 1 : taps_);
    staged_ = costs_.staged * (bytes_per_element(problem.type) < 4 ? costs_.converted : 1);
    // If no pool follows, all activations but Relu are called.
    const bool calls = problem.epilogue.pool.kind == PoolKind::none && !is_relu_or_none(problem.epilogue);
    result_ = costs_.result - costs_.skipped + (calls ? costs_.call : 0) +
              (problem.epilogue.has_residual ? costs_.residual : 0);
  }

  // Nanoseconds. The throughput of a multiprocessor, the latency of a warp in each wave of blocks, and the
  // starts of blocks bound the time; they overlap.
  double nanoseconds(const Tiling& tiling) const {
    const double blocks = to_double(tiling.blocks), threads = tiling.threads;
    const double products = 2.0 * tiling.thread_filters * tiling.thread_columns * product_;
    const double multiplying =
        to_double(ceil_divide(filter_rows_, tiling.splits)) * (taps_ * products + row_);
    const double staging = to_double(channels_) * staged_ *
                           (tiling.window_height * tiling.window_width +
                            plane_taps_ * to_double(ceil_divide(tiling.filters, 4) * 4));
    // Results past the output's edges or after the last filter are not stored.
    const double results = to_double(tiling.filters) * tiling.rows * tiling.columns;
    const double storing =
        results * costs_.skipped + outputs_ / blocks * (result_ + costs_.split * tiling.splits);
    const double instructions = multiplying + (staging + storing) / threads;

    const int64_t blocks_per_multiprocessor = ceil_divide(tiling.blocks, multiprocessors_);
    const int64_t waves = ceil_divide(blocks_per_multiprocessor, blocks_at_once(tiling));
    const double stages = to_double(ceil_divide(channels_, tiling.channels));
    const double issue =
        to_double(blocks_per_multiprocessor) * threads / kWarpSize * instructions * costs_.instruction;
    const double latency =
        to_double(waves) * (instructions * costs_.instruction_latency + stages * costs_.stage_latency);
    const double starts = blocks * costs_.block_start;
    return costs_.launch + std::sqrt(issue * issue + latency * latency + starts * starts);
  }

 private:
  // True if the kernel unrolls the taps of a filter row.
  static bool is_unrolled(const ConvProblem& problem) {
    const int64_t taps = problem.filter[2];
    return problem.dilation[2] == 1 && (taps == 1 || taps == 3 || taps == 5 || taps == 7);
  }

  // Blocks that a multiprocessor holds at a time.
  int blocks_at_once(const Tiling& tiling) const {
    const int registers = tiling.thread_columns == 4 ? 128 : tiling.thread_filters == 8 ? 80 : 64;
    return std::max(1, std::min({65'536 / (registers * tiling.threads), 2048 / tiling.threads,
                                 shared_memory_ / (tiling.shared_bytes + 1024)}));
  }

  const decltype(Costs::tiled)& costs_;
  int multiprocessors_, shared_memory_;
  int64_t channels_, filter_rows_;  // of a group; rows of one channel's filter
  double taps_, plane_taps_;        // of a filter row, and of a channel's filter
  double outputs_;
  double product_, row_, staged_, result_;  // instructions
};

}  // namespace

void search(const ConvProblem& problem, const Device& device, Candidates<Tiling>& found) {
  const Pool& pool = problem.epilogue.pool;
  const Estimate estimate(problem, device);
  const auto max_threads = [&](int axis) {
    return std::min<int64_t>(kMaxThreadsPerAxis, std::max<int64_t>(1, 2 * problem.output[axis]));
  };
  for (int down = 1; down <= max_threads(1); down *= 2) {
    for (int across = 1; across <= max_threads(2); across *= 2) {
      for (const Instance& instance : instances_for(problem)) {
        if (2 * down % pool.kernel[0] != 0 || instance.columns * across % pool.kernel[1] != 0) continue;
        Tiling tiling;
        tiling.rows = 2 * down, tiling.columns = instance.columns * across;
        tiling.thread_columns = instance.columns, tiling.thread_filters = instance.filters;
        if (!set_window(problem, device, tiling)) continue;
        for (int threads_across_filters = 1; threads_across_filters <= kMaxThreadsAcrossFilters;
             threads_across_filters *= 2) {
          const int threads_per_split = down * across * threads_across_filters;
          tiling.filters = instance.filters * threads_across_filters;
          if (threads_per_split > kMaxThreads || !set_stage(problem, device, tiling)) break;
          for (tiling.splits = 1;
               tiling.splits <= kMaxSplits && threads_per_split * tiling.splits <= kMaxThreads;
               tiling.splits *= 2) {
            tiling.threads = static_cast<int>(round_up(threads_per_split * tiling.splits, kWarpSize));
            if (!set_shared_bytes(problem, device, tiling)) break;
            tiling.cost = estimate.nanoseconds(tiling);
            found.add(tiling);
          }
        }
      }
    }
  }
}

double cost_of(const ConvProblem& problem, const Device& device, const Tiling& tiling) {
  return Estimate(problem, device).nanoseconds(tiling);
}

}  // namespace convswap::tiled
