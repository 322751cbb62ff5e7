#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <utility>

#include "conv/arithmetic.h"
#include "cuda/host/candidates.h"
#include "cuda/host/estimate.h"
#include "cuda/host/launch.h"
#include "cuda/tiled/arguments.h"
#include "cuda/tiled/family.h"

namespace convswap::tiled {
namespace {

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

// Sets the layout of a stage: all channels, or as many as leave shared memory for other blocks. Returns false
// if not even one channel fits.
bool stage_channels(const ConvProblem& problem, const Device& device, Tiling& tiling) {
  const auto reach = [&](int axis, int extent) {
    return (extent - 1) * problem.stride[axis] + (problem.filter[axis] - 1) * problem.dilation[axis] + 1;
  };
  const int64_t height = reach(1, tiling.rows), width = reach(2, tiling.columns);
  const int64_t max_elements = device.shared_memory_per_block / accumulator_bytes(problem);
  if (width > max_elements || height > max_elements) return false;
  const int pitch = window_pitch(width, tiling.columns / tiling.thread_columns, 2 * problem.stride[1]);
  // A multiple of four elements, so that the weights after the window are aligned to 16 bytes.
  const int64_t plane = ceil_divide(height * pitch, 4) * 4;
  // An odd number of quads: eight taps of four filters then fall into 32 banks.
  const int64_t filter_quads = ceil_divide(tiling.filters, 4) | 1;
  const int64_t channel_elements = plane + taps_of_plane(problem) * filter_quads * 4;
  const int64_t results = static_cast<int64_t>(tiling.splits) * tiling.filters * tiling.rows * tiling.columns;
  if (std::max(channel_elements, results) > max_elements) return false;
  const int64_t stage_elements = std::max(
      std::min<int64_t>(max_elements, kBytesForThreeBlocks / accumulator_bytes(problem)), channel_elements);
  const int64_t channels = std::min(depth_channels(problem), stage_elements / channel_elements);
  tiling.window_height = static_cast<int>(height), tiling.window_width = static_cast<int>(width);
  tiling.window_pitch = pitch, tiling.window_plane = static_cast<int>(plane);
  tiling.weight_pitch = static_cast<int>(filter_quads * 4);
  tiling.channels = static_cast<int>(channels);
  tiling.shared_bytes =
      static_cast<int>(std::max(channels * channel_elements, results) * accumulator_bytes(problem));
  return true;
}

struct Costs {
  double launch_nanoseconds, block_cycles;
  double staged, result;  // instructions, of a number that is staged, and of a result
};
// Fitted by least squares, those near the fastest counting most, to 22,600 tilings of the course layers and
// of layers of large networks measured at batches 1 and 64 with version 1 of the kernel: these choose a
// tiling.
constexpr Costs kAmongTilings = {2890, 1980, 98.6, 42.4};
// And by hand to 315 times of what they choose, of the layers of the suites course and one-image with version
// 3, for the choice among algorithms (benchmarks/tiled.md).
constexpr Costs kAmongAlgorithms = {2760, 700, 130, 90};

// Nanoseconds on an H200.
double cost_of(const ConvProblem& problem, const Device& device, const Tiling& tiling, const Costs& costs) {
  constexpr double kCyclesPerNanosecond = 1.755, kBytesPerNanosecond = 32.6;
  // Instructions a cycle, those of a warp alone and those of a multiprocessor.
  constexpr double kOfWarp = 0.325, kOfMultiprocessor = 3.53;
  constexpr double kStageCycles = 165;
  const int64_t channels = depth_channels(problem);
  const int64_t blocks = problem.batch * problem.output[0] * ceil_divide(problem.output[1], tiling.rows) *
                         ceil_divide(problem.output[2], tiling.columns) * problem.group *
                         ceil_divide(problem.filters_per_group(), tiling.filters);
  const double stages = to_double(ceil_divide(channels, tiling.channels));
  const double filter_rows = to_double(ceil_divide(channels * problem.filter[1], tiling.splits));
  const double of_tap = 1.64 * tiling.thread_filters * 2 * tiling.thread_columns + 4;
  const double staged =
      to_double(channels) * to_double(tiling.window_height * tiling.window_width +
                                      taps_of_plane(problem) * ceil_divide(tiling.filters, 4) * 4);
  const double results = to_double(tiling.filters) * tiling.rows * tiling.columns;
  const double of_thread =
      filter_rows * (to_double(problem.filter[2]) * of_tap + 3.7) + stages * 138 +
      (staged * costs.staged + results * (costs.result + 3.0 * tiling.splits)) / tiling.threads;
  const double warps = tiling.threads / 32;
  const int registers = tiling.thread_columns == 4 ? 128 : tiling.thread_filters == 8 ? 80 : 64;
  const int64_t of_multiprocessor = ceil_divide(blocks, std::max(1, device.multiprocessors));
  const double resident = to_double(std::max<int64_t>(
      1, std::min<int64_t>({of_multiprocessor, 65'536 / (registers * tiling.threads), 2048 / tiling.threads,
                            device.shared_memory_per_multiprocessor / (tiling.shared_bytes + 1024)})));
  const double rate = std::min(kOfMultiprocessor, kOfWarp * resident * warps);
  const double waves = std::ceil(to_double(of_multiprocessor) / resident);
  const double cycles = to_double(of_multiprocessor) * warps * of_thread / rate +
                        waves * (stages * kStageCycles / resident + costs.block_cycles);
  // Course layers in 16 bits, which are converted as they are staged, took up to 1.28 times as long as in
  // float32 at batch 8. float64, which has half of float32's rate, took 1.05 to 1.7 times as long in 16
  // layers of two and three dimensions.
  const double of_type = problem.type == ElementType::float64                  ? 1.4
                         : bytes_per_element(problem.type) < 4 && channels > 1 ? 1.25
                                                                               : 1;
  // Where no pool follows, all activations but Relu are called: by the suite `fused` with SiLU and HardSwish
  // (benchmarks/activations.md). Others take no less.
  constexpr double kCalledCycles = 1.1;
  const bool calls = problem.epilogue.pool.kind == PoolKind::none && !is_relu_or_none(problem.epilogue);
  const double activating = calls
                                ? kCalledCycles * to_double(problem.batch) * to_double(problem.out_channels) *
                                      to_double(problem.output_size()) / std::max(1, device.multiprocessors)
                                : 0;
  const double memory =
      to_double(problem.tensor_bytes()) / (kBytesPerNanosecond * std::max(1, device.multiprocessors));
  return costs.launch_nanoseconds - kEarlyStartNanoseconds +
         std::max((of_type * cycles + activating) / kCyclesPerNanosecond, memory);
}

std::span<const Instance> instances_for(const ConvProblem& problem) {
  if (problem.type == ElementType::float64) return kFloat64Instances;
  return kInstances;
}

}  // namespace

namespace {

void search(const ConvProblem& problem, const Device& device, Candidates<Tiling>& found) {
  const Pool& pool = problem.epilogue.pool;
  const auto max_threads = [&](int axis) {
    return std::min<int64_t>(kMaxThreadsPerAxis, std::max<int64_t>(1, 2 * problem.output[axis]));
  };
  for (int down = 1; down <= max_threads(1); down *= 2) {
    for (int across = 1; across <= max_threads(2); across *= 2) {
      for (const Instance& instance : instances_for(problem)) {
        if (2 * down % pool.kernel[0] != 0 || instance.columns * across % pool.kernel[1] != 0) continue;
        for (int threads_across_filters = 1; threads_across_filters <= kMaxThreadsAcrossFilters;
             threads_across_filters *= 2) {
          const int threads_per_split = down * across * threads_across_filters;
          for (int splits = 1; splits <= kMaxSplits && threads_per_split * splits <= kMaxThreads;
               splits *= 2) {
            Tiling tiling;
            tiling.rows = 2 * down, tiling.columns = instance.columns * across;
            tiling.thread_columns = instance.columns, tiling.thread_filters = instance.filters;
            tiling.filters = instance.filters * threads_across_filters;
            tiling.splits = splits;
            tiling.threads = static_cast<int>(ceil_divide(threads_per_split * splits, 32) * 32);
            if (!stage_channels(problem, device, tiling)) continue;
            tiling.cost = cost_of(problem, device, tiling, kAmongTilings);
            found.add(tiling);
          }
        }
      }
    }
  }
}

}  // namespace

std::optional<Tiling> best_tiling(const ConvProblem& problem, const Device& device) {
  std::optional<Tiling> best = best_of<Tiling>([&](auto& found) { search(problem, device, found); });
  if (best) best->cost = cost_of(problem, device, *best, kAmongAlgorithms);
  return best;
}

std::vector<Tiling> cheapest_tilings(const ConvProblem& problem, const Device& device) {
  std::vector<Tiling> all = all_of<Tiling>([&](auto& found) { search(problem, device, found); });
  for (Tiling& tiling : all) tiling.cost = cost_of(problem, device, tiling, kAmongAlgorithms);
  return all;
}

}  // namespace convswap::tiled
