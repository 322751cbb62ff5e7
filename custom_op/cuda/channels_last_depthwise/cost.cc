// Chooses the tiling of channels_last_depthwise with the lowest estimated time, without measuring.

#include <algorithm>
#include <cmath>
#include <vector>

#include "conv/arithmetic.h"
#include "cuda/channels_last_depthwise/family.h"
#include "cuda/costs/cost_table.h"
#include "cuda/host/candidates.h"
#include "cuda/host/estimate.h"

namespace convswap::channels_last_depthwise {
namespace {

constexpr std::size_t kMaxTileExtents = 5;
constexpr int64_t kMaxTileVectors = 64, kMaxTileStrips = 32;
// Channels of a tile that are next to each other, for whole sectors of memory.
constexpr int kMinTileBytes = 64;
constexpr int64_t kReservedBytes = 1024;  // of shared memory, that each block takes besides its own
// Rows of a run. The longer the runs of `sliding`, the further apart is what the blocks of a wave read and
// write: 120 channels of 3x3 on 66² (256 images) take 324 us in runs of 66 rows, 215 of 33 and 199 of 17.
// With more taps a run has to be longer, for its first rows are computed in vain.
int64_t max_rows(const Instance& instance) {
  return instance.kind == Kind::sliding ? 9 * (instance.width - 1) : 8;
}

// Extents of tiles, at most `max_tile`, that cut an axis into as few tiles as possible, and into 2, 4, ...
// times as many.
std::vector<int> tile_extents(int64_t extent, int64_t max_tile) {
  std::vector<int> tiles;
  for (int64_t count = ceil_divide(extent, max_tile); tiles.size() < kMaxTileExtents; count *= 2) {
    const int tile = static_cast<int>(ceil_divide(extent, count));
    if (!tiles.empty() && tile == tiles.back()) break;
    tiles.push_back(tile);
  }
  return tiles;
}

void set_blocks(const ConvProblem& problem, Tiling& tiling) {
  tiling.blocks = ceil_divide(vectors_of(problem, tiling.instance), tiling.vectors) *
                  ceil_divide(strips_of(problem), tiling.strips) *
                  ceil_divide(runs_of(problem, tiling), tiling.runs);
}

bool can_slide(const ConvProblem& problem, const Instance& instance, const Device& device) {
  return device.compute_capability >= 80 && problem.filter == Axes{1, instance.width, instance.width} &&
         problem.stride == Axes{1, instance.stride, instance.stride} && problem.dilation == Axes{1, 1, 1} &&
         problem.pad_begin[0] == 0 && problem.input[0] == problem.output[0];
}

// The first instance that computes the problem.
Instance instance_for(const ConvProblem& problem, const Device& device) {
  return *std::ranges::find_if(kInstances, [&](const Instance& instance) {
    if (instance.kind == Kind::single) return true;
    const int64_t channels = kVectorBytes / bytes_per_element(problem.type);
    if (problem.filters_per_group() > 1 || problem.out_channels % channels != 0) return false;
    if (instance.kind == Kind::sliding) return can_slide(problem, instance, device);
    return instance.width == 0 || (instance.width == problem.filter[2] && problem.dilation[2] == 1 &&
                                   instance.stride == problem.stride[2]);
  });
}

// Positions along an axis of x that `outputs` adjacent ones of y read.
int64_t reach(const ConvProblem& problem, int axis, int64_t outputs) {
  return std::min(
      (outputs - 1) * problem.stride[axis] + (problem.filter[axis] - 1) * problem.dilation[axis] + 1,
      problem.input[axis]);
}

// Bytes that the blocks read from the second-level cache: the receptive fields of their tiles.
double loaded_bytes(const ConvProblem& problem, const Tiling& tiling) {
  const int64_t tile_rows = std::min(int64_t{tiling.runs} * tiling.rows, problem.output[1]);
  const int64_t planes = ceil_divide(int64_t{tiling.runs} * tiling.rows, problem.output[1]);
  const int64_t pixels = reach(problem, 2, int64_t{tiling.strips} * kStripColumns) *
                         reach(problem, 1, tile_rows) * planes * problem.filter[0];
  return to_double(tiling.blocks * pixels) * tiling.vectors * tiling.instance.bytes(problem.type);
}

// What a thread does for its run: filter rows that it loads pixels for, the pixels and taps of one, and
// multiplications.
struct Work {
  double filter_rows, pixels, taps, products;
};

Work work_of(const ConvProblem& problem, const Tiling& tiling) {
  const Instance& instance = tiling.instance;
  const double channels = to_double(int64_t{instance.channels(problem.type)}), columns = kStripColumns;
  const double width = to_double(problem.filter[2]);
  const double pixels = instance.width > 0 ? (columns - 1) * instance.stride + width : columns * width;
  if (instance.kind == Kind::sliding) {
    const double rows = to_double(reach(problem, 1, tiling.rows));
    const double rows_with_products = width > 3 ? to_double(tiling.rows) : rows / instance.stride;
    // The taps are loaded once.
    return {rows, pixels, width * width / rows, rows_with_products * columns * width * width * channels};
  }
  const double rows = to_double(tiling.rows * problem.filter[0] * problem.filter[1]);
  return {rows, pixels, width, rows * columns * width * channels};
}

// Lines of 128 bytes that the warps of a block load and store. The lanes of a warp have the tile's vectors of
// several strips; lanes of the same vector load the same weights.
double lines_of(const ConvProblem& problem, const Tiling& tiling, const Work& work) {
  const int line_vectors = 128 / tiling.instance.bytes(problem.type);
  const int vectors = std::min(tiling.vectors, 32);
  const double run_lines = std::ceil(to_double(vectors) / line_vectors);
  const double strip_lines = std::ceil(32.0 / vectors) * run_lines;
  const int tensors = problem.epilogue.has_residual ? 2 : 1;
  return to_double(ceil_divide(tiling.threads(), 32)) *
         (work.filter_rows * (work.pixels * strip_lines + work.taps * run_lines) +
          tensors * tiling.rows * kStripColumns * strip_lines);
}

// Blocks that a multiprocessor computes at the same time.
int64_t resident_blocks(const Device& device, const Tiling& tiling) {
  constexpr int64_t kThreads = 2048, kRegisters = 65'536;
  const int64_t threads = round_up(tiling.threads(), 32);
  return std::max<int64_t>(
      1, std::min({kThreads / threads, kRegisters / (tiling.instance.registers * threads),
                   device.shared_memory_per_multiprocessor / (tiling.shared_bytes() + kReservedBytes)}));
}

}  // namespace

void search(const ConvProblem& problem, const Device& device, Candidates<Tiling>& found) {
  const Instance instance = instance_for(problem, device);
  const bool slides = instance.kind == Kind::sliding;
  const std::vector<int> vector_counts =
      slides ? std::vector{kGroupWords} : tile_extents(vectors_of(problem, instance), kMaxTileVectors);
  for (const int vectors : vector_counts) {
    if (vectors != vector_counts.front() && vectors * instance.bytes(problem.type) < kMinTileBytes) break;
    const int64_t max_strips = std::min<int64_t>(kMaxThreads / vectors, kMaxTileStrips);
    for (const int strips : tile_extents(strips_of(problem), max_strips)) {
      for (const int rows : tile_extents(problem.output[1], max_rows(instance))) {
        for (const int threads : {64, 128, kMaxThreads}) {
          Tiling tiling{.instance = instance, .vectors = vectors, .strips = strips, .rows = rows};
          if (slides) {
            // A warp has two strips, and both of the same run.
            tiling.strips = static_cast<int>(round_up(strips, 2));
            tiling.stage_bytes =
                round_up((int64_t{tiling.strips} * kStripColumns - 1) * instance.stride + instance.width, 2) *
                kGroupBytes;
          }
          tiling.runs = static_cast<int>(
              std::min<int64_t>(threads / (vectors * tiling.strips), runs_of(problem, tiling)));
          if (tiling.runs == 0 || tiling.shared_bytes() > device.shared_memory_per_block) continue;
          set_blocks(problem, tiling);
          tiling.cost = cost_of(problem, device, tiling);
          found.add(tiling);
        }
      }
    }
  }
}

int64_t vectors_of(const ConvProblem& problem, const Instance& instance) {
  return ceil_divide(problem.out_channels, instance.channels(problem.type));
}

int64_t strips_of(const ConvProblem& problem) {
  return ceil_divide(problem.output[2], int64_t{kStripColumns});
}

int64_t runs_of(const ConvProblem& problem, const Tiling& tiling) {
  return problem.batch * problem.output[0] * ceil_divide(problem.output[1], int64_t{tiling.rows});
}

// A multiprocessor computes its resident blocks together, a wave after the other: it issues their
// instructions, or waits for a thread. Memory and both caches work meanwhile.
double cost_of(const ConvProblem& problem, const Device& device, const Tiling& tiling) {
  const auto& costs = costs_of(device).channels_last_depthwise;
  const Instance& instance = tiling.instance;
  const double channels = instance.channels(problem.type);
  const Work work = work_of(problem, tiling);
  const double vector =
      costs.vector + (problem.type == ElementType::float32 ? 0 : costs.conversion * channels);
  const double activation = costs.activation * activation_cycles(problem.epilogue, costs_of(device));
  const double residual = problem.epilogue.has_residual ? vector : 0;
  const double instructions =
      costs.thread + work.filter_rows * (work.pixels + work.taps) * vector + work.products +
      tiling.rows * (costs.strip + kStripColumns * (costs.output + residual + channels * activation));

  const int64_t multiprocessors = std::max(1, device.multiprocessors);
  const double warps = to_double(ceil_divide(tiling.threads(), 32));
  const double issue = warps * instructions / 4 * costs.instruction;
  // `sliding` loads rows, and the residual, while it computes others.
  const double computing = instructions * costs.latency;
  const double rows_waited = work.filter_rows + (problem.epilogue.has_residual ? tiling.rows : 0);
  const double latency = computing + costs.row * (instance.kind == Kind::sliding ? 1 : rows_waited);
  const int64_t resident = resident_blocks(device, tiling);
  const auto wave_of = [&](int64_t blocks) {
    return blocks == 0 ? 0.0 : std::max(to_double(blocks) * issue, latency);
  };
  const int64_t wave = multiprocessors * resident, waves = tiling.blocks / wave;
  const double waves_time = to_double(waves) * wave_of(resident) +
                            wave_of(ceil_divide(tiling.blocks - waves * wave, multiprocessors));
  const double memory = to_double(problem.tensor_bytes()) / costs.memory;
  const double cache = loaded_bytes(problem, tiling) / costs.cache;
  const double lines =
      to_double(tiling.blocks) / to_double(multiprocessors) * lines_of(problem, tiling, work) * costs.line;
  return costs.launch + overlapped({waves_time, memory, cache, lines});
}

Tiling tiling_of_single_channels(const ConvProblem& problem) {
  Tiling tiling{.instance = kSingle};
  tiling.vectors = static_cast<int>(std::min<int64_t>(problem.out_channels, kMaxTileVectors));
  tiling.runs = static_cast<int>(std::min<int64_t>(kMaxThreads / tiling.vectors, runs_of(problem, tiling)));
  // Strips fill blocks of few rows, as of 1-D data.
  tiling.strips =
      static_cast<int>(std::min(kMaxThreads / (int64_t{tiling.vectors} * tiling.runs), strips_of(problem)));
  set_blocks(problem, tiling);
  return tiling;
}

}  // namespace convswap::channels_last_depthwise
