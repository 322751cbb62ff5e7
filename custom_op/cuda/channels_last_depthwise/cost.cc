// Chooses the tiling of channels_last_depthwise with the lowest estimated time, without measuring.

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "conv/arithmetic.h"
#include "cuda/channels_last_depthwise/family.h"
#include "cuda/costs/cost_table.h"
#include "cuda/host/candidates.h"
#include "cuda/host/estimate.h"

namespace convswap::channels_last_depthwise {
namespace {

constexpr int kBlockThreads[] = {64, 128, kMaxThreads};
constexpr std::size_t kMaxTileExtents = 5;
constexpr int64_t kMaxTileVectors = 64, kMaxTileStrips = 32;
constexpr int kMaxBands = 8;

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
                  ceil_divide(strips_of(problem, tiling.instance), tiling.strips) *
                  ceil_divide(rows_of(problem), int64_t{tiling.rows} * tiling.bands);
}

// The instances for the problem: those of its filter row, or the one for any.
std::vector<Instance> instances_for(const ConvProblem& problem) {
  const int64_t channels = kVectorBytes / bytes_per_element(problem.type);
  if (problem.filters_per_group() > 1 || problem.out_channels % channels != 0) return {kWithoutVectors};
  std::vector<Instance> fitting;
  for (const Instance& instance : kInstances) {
    if (instance.has_vectors && problem.dilation[2] == 1 && instance.width == problem.filter[2] &&
        instance.stride == problem.stride[2]) {
      fitting.push_back(instance);
    }
  }
  if (!fitting.empty()) return fitting;
  return {*std::ranges::find_if(kInstances, [](const Instance& each) { return each.width == 0; })};
}

// Bytes that the blocks read from the second-level cache: the receptive fields of their tiles.
double loaded_bytes(const ConvProblem& problem, const Tiling& tiling) {
  const auto reach = [&](int axis, int64_t outputs) {
    return std::min(
        (outputs - 1) * problem.stride[axis] + (problem.filter[axis] - 1) * problem.dilation[axis] + 1,
        problem.input[axis]);
  };
  const int64_t columns = reach(2, int64_t{tiling.strips} * tiling.instance.outputs);
  const int64_t tile_rows = int64_t{tiling.rows} * tiling.bands;
  const int64_t rows =
      reach(1, std::min(tile_rows, problem.output[1])) * ceil_divide(tile_rows, problem.output[1]);
  const int64_t pixels = tiling.blocks * columns * rows * problem.filter[0];
  return to_double(pixels) * tiling.vectors *
         to_double(tiling.instance.channels(problem.type) * bytes_per_element(problem.type));
}

// Lines of 128 bytes that the warps of a tile load and store. The lanes of a warp have the tile's vectors of
// several strips; lanes of the same vector load the same weights.
double lines_of(const ConvProblem& problem, const Tiling& tiling, double pixels) {
  constexpr int kLineVectors = 128 / kVectorBytes;
  const int vectors = std::min(tiling.vectors, 32);
  const double run_lines = std::ceil(to_double(vectors) / kLineVectors);
  const double strip_lines = std::ceil(32.0 / vectors) * run_lines;
  const int tensors = problem.epilogue.has_residual ? 2 : 1;
  const double warps = tiling.bands * to_double(ceil_divide(tiling.threads(), 32));
  return warps * (to_double(problem.filter[0] * problem.filter[1]) *
                      (pixels * strip_lines + to_double(problem.filter[2]) * run_lines) +
                  tensors * tiling.instance.outputs * strip_lines);
}

void search(const ConvProblem& problem, const Device& device, Candidates<Tiling>& found) {
  for (const Instance& instance : instances_for(problem)) {
    for (const int vectors : tile_extents(vectors_of(problem, instance), kMaxTileVectors)) {
      for (const int strips : tile_extents(strips_of(problem, instance), kMaxTileStrips)) {
        for (const int threads : kBlockThreads) {
          Tiling tiling{.instance = instance, .vectors = vectors, .strips = strips};
          tiling.rows = static_cast<int>(std::min<int64_t>(threads / (vectors * strips), rows_of(problem)));
          if (tiling.rows == 0) continue;
          for (tiling.bands = 1; tiling.bands <= kMaxBands; tiling.bands *= 2) {
            set_blocks(problem, tiling);
            // Bands take blocks from a card that has multiprocessors without one.
            if (tiling.bands > 1 && tiling.blocks < device.multiprocessors) break;
            tiling.cost = cost_of(problem, device, tiling);
            found.add(tiling);
          }
        }
      }
    }
  }
}

}  // namespace

int64_t vectors_of(const ConvProblem& problem, const Instance& instance) {
  return ceil_divide(problem.out_channels, instance.channels(problem.type));
}

int64_t strips_of(const ConvProblem& problem, const Instance& instance) {
  return ceil_divide(problem.output[2], int64_t{instance.outputs});
}

int64_t rows_of(const ConvProblem& problem) { return problem.batch * problem.output[0] * problem.output[1]; }

// Instruction issue, memory, both caches, and the latency of a thread for each wave of blocks overlap.
double cost_of(const ConvProblem& problem, const Device& device, const Tiling& tiling) {
  const auto& costs = costs_of(device).channels_last_depthwise;
  const Instance& instance = tiling.instance;
  const double channels = to_double(instance.channels(problem.type)), outputs = instance.outputs;
  const double width = to_double(problem.filter[2]);
  const double filter_rows = to_double(problem.filter[0] * problem.filter[1]);
  const double pixels = instance.width > 0 ? (outputs - 1) * instance.stride + width : outputs * width;
  const double conversion = problem.type == ElementType::float32 ? 0 : costs.conversion * channels;
  const double row = (pixels + width) * (costs.vector + conversion) + outputs * width * channels;
  const double activation = costs.activation * activation_cycles(problem.epilogue, costs_of(device));
  const double residual = problem.epilogue.has_residual ? costs.vector + conversion : 0;
  const double instructions =
      costs.thread + tiling.bands * (costs.strip + filter_rows * row +
                                     outputs * (costs.output + residual + channels * activation));

  const double multiprocessors = std::max(1, device.multiprocessors);
  const double blocks = to_double(tiling.blocks) / multiprocessors;
  const double warps = to_double(ceil_divide(tiling.threads(), 32));
  const double issue = blocks * warps * instructions / 4 * costs.instruction;
  const double memory = to_double(problem.tensor_bytes()) / costs.memory;
  const double cache = loaded_bytes(problem, tiling) / costs.cache;
  const double lines = blocks * lines_of(problem, tiling, pixels) * costs.line;
  const double resident = std::max(
      1.0, std::min(std::floor(2048 / (32 * warps)), std::floor(65'536 / (instance.registers * 32 * warps))));
  const double latency =
      std::max(1.0, blocks / resident) *
      (tiling.bands * (filter_rows + (residual > 0 ? 1 : 0)) * costs.row + instructions * costs.latency);
  return costs.launch + overlapped({issue, memory, cache, lines, latency});
}

std::optional<Tiling> best_tiling(const ConvProblem& problem, const Device& device) {
  return best_of<Tiling>([&](Candidates<Tiling>& found) { search(problem, device, found); });
}

std::vector<Tiling> cheapest_tilings(const ConvProblem& problem, const Device& device) {
  return all_of<Tiling>([&](Candidates<Tiling>& found) { search(problem, device, found); });
}

Tiling tiling_without_vectors(const ConvProblem& problem) {
  Tiling tiling{.instance = kWithoutVectors};
  tiling.vectors = static_cast<int>(std::min<int64_t>(problem.out_channels, kMaxTileVectors));
  tiling.rows = static_cast<int>(std::min<int64_t>(kMaxThreads / tiling.vectors, rows_of(problem)));
  // Strips fill blocks of few rows, as of 1-D data.
  tiling.strips = static_cast<int>(
      std::min(kMaxThreads / (int64_t{tiling.vectors} * tiling.rows), strips_of(problem, tiling.instance)));
  set_blocks(problem, tiling);
  return tiling;
}

}  // namespace convswap::channels_last_depthwise
