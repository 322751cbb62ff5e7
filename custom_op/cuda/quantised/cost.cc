// Chooses the kernel and the tiling of quantised with the least estimated time, without measuring.

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "conv/arithmetic.h"
#include "cuda/costs/cost_table.h"
#include "cuda/host/candidates.h"
#include "cuda/host/estimate.h"
#include "cuda/host/limits.h"
#include "cuda/host/shared_layout.h"
#include "cuda/quantised/family.h"

namespace convswap::quantised {
namespace {

constexpr int kBlockThreads[] = {64, 128, kThreads};
constexpr int kMaxFilterLanes = 8;
constexpr std::size_t kMaxTileExtents = 8;
// Bytes of shared memory of a block, which leave room for several blocks on a multiprocessor.
constexpr int64_t kMaxSharedBytes = 48 * 1024;
// More blocks of `kernel` than any card holds at once; its grid-stride loop covers the remaining elements.
constexpr int64_t kMaxBlocks = 1 << 20;

// Extents of tiles, at most `max_tile`, that cut an axis into as few tiles as possible, and into more.
std::vector<int64_t> tile_extents(int64_t extent, int64_t max_tile) {
  std::vector<int64_t> tiles;
  for (int64_t count = ceil_divide(extent, max_tile); count <= extent && tiles.size() < kMaxTileExtents;
       ++count) {
    const int64_t tile = ceil_divide(extent, count);
    if (tiles.empty() || tile < tiles.back()) tiles.push_back(tile);
  }
  return tiles;
}

bool has_32_bit_indices(const ConvProblem& problem) {
  const int64_t padded_filters = problem.out_channels + problem.group * kMaxFilterLanes * kDenseFilters[1];
  return why_not_sizes(problem).empty() &&
         why_not_32_bit_indices(
             {problem.batch * problem.input[0] * problem.input[1], problem.input_size(),
              problem.output_size(), problem.batch * problem.output[0] * problem.output[1] + kBandRows,
              padded_filters * words_of(problem) * problem.filter_size() * kWordChannels,
              padded_input(problem, 0), padded_input(problem, 1), padded_input(problem, 2)})
             .empty();
}

// Lays out shared memory with as many words of channels as fit; false if one does not.
bool lay_out(const ConvProblem& problem, const Device& device, Tiling& tiling) {
  const int64_t pixels = staged_extent(problem, 1, tiling.rows) * staged_extent(problem, 2, tiling.columns);
  const int64_t weights = problem.filter[1] * problem.filter[2] * tiling.block_filters();
  const int64_t capacity = std::min<int64_t>(device.shared_memory_per_block, kMaxSharedBytes);
  for (tiling.stage_words = words_of(problem); tiling.stage_words > 0;
       tiling.stage_words = tiling.stage_words == 1 ? 0 : ceil_divide(tiling.stage_words, 2)) {
    SharedLayout block(16, capacity);
    tiling.x_words = block.place<unsigned>(tiling.stage_words * pixels);
    tiling.w_words = block.place<unsigned>(tiling.stage_words * weights);
    tiling.shared_bytes = block.end();
    if (block.end() <= capacity) return true;
  }
  return false;
}

void add_dense(const ConvProblem& problem, const Device& device, Candidates<Tiling>& found) {
  for (const int filters : kDenseFilters) {
    Tiling tiling;
    tiling.kernel = Kernel::dense;
    tiling.filters = filters;
    tiling.filter_lanes = 1;
    while (tiling.filter_lanes < kMaxFilterLanes && tiling.block_filters() < problem.filters_per_group()) {
      tiling.filter_lanes *= 2;
    }
    for (const int threads : kBlockThreads) {
      tiling.threads = threads;
      for (const int64_t columns : tile_extents(problem.output[2], tiling.positions())) {
        tiling.columns = columns;
        const int64_t max_rows = tiling.positions() / columns;
        const int64_t row_tiles = ceil_divide(problem.output[1], max_rows);
        tiling.rows = ceil_divide(problem.output[1], row_tiles);
        if (!lay_out(problem, device, tiling)) continue;
        tiling.blocks = problem.batch * problem.output[0] * row_tiles *
                        ceil_divide(problem.output[2], columns) * problem.group *
                        filter_blocks_of(problem, tiling);
        if (!why_not_32_bit_indices({tiling.blocks}).empty()) continue;
        tiling.cost = cost_of(problem, device, tiling);
        found.add(tiling);
      }
    }
  }
}

void add_depthwise(const ConvProblem& problem, const Device& device, Candidates<Tiling>& found) {
  const auto add = [&](Kernel kernel, const DepthwiseInstance& instance) {
    const bool is_any = instance.width == 0;
    if (!is_any && (problem.dilation[2] != 1 || problem.filter[2] != instance.width ||
                    problem.stride[2] != instance.stride)) {
      return;
    }
    Tiling tiling;
    tiling.kernel = kernel;
    tiling.depthwise = instance;
    const int64_t threads = problem.in_channels / tiling.thread_channels() *
                            ceil_divide(problem.output[2], int64_t{instance.outputs}) *
                            round_up(strip_rows_of(problem, tiling), int64_t{kBandRows});
    if (!why_not_32_bit_indices({threads + kThreads}).empty()) return;
    tiling.blocks = ceil_divide(threads, int64_t{kThreads});
    tiling.cost = cost_of(problem, device, tiling);
    found.add(tiling);
  };
  for (const DepthwiseInstance& instance : kDepthwiseInstances) add(Kernel::depthwise, instance);
  if (problem.filter[1] != kColumnTaps || problem.dilation[1] != 1) return;
  for (const DepthwiseInstance& instance : kColumnInstances) {
    if (problem.stride[1] == instance.stride && problem.in_channels % (instance.words * kWordChannels) == 0) {
      add(Kernel::depthwise_columns, instance);
    }
  }
}

// Nanoseconds of a multiprocessor for all blocks of `dense`.
double dense_cost(const ConvProblem& problem, const Costs& all, const Tiling& tiling) {
  const auto& costs = all.quantised;
  const double steps = to_double(words_of(problem) * problem.filter_size());
  const double staged =
      to_double(words_of(problem) * problem.filter[0] * staged_extent(problem, 1, tiling.rows) *
                staged_extent(problem, 2, tiling.columns));
  // A thread stages four weights at a time, without any conversion: half of a word of pixels.
  const double weights = steps * tiling.block_filters() / 4;
  const double results = kPositions * tiling.filters;
  const double stagings = std::ceil(staged / tiling.threads) + std::ceil(weights / tiling.threads) / 2;
  const double warp = steps * (results * costs.multiply + costs.step) +
                      results * (costs.result + activation_nanoseconds(problem.epilogue, all));
  return to_double(tiling.blocks) * tiling.threads / 32.0 * (warp + stagings * costs.staged);
}

// The same for the depthwise kernels, whose loads take most of the time.
double depthwise_cost(const ConvProblem& problem, const Costs& all, const Tiling& tiling) {
  const auto& costs = all.quantised;
  const DepthwiseInstance& instance = tiling.depthwise;
  const double taps = to_double(problem.filter_size()), outputs = instance.outputs;
  const double rows = tiling.depthwise_rows();
  const double columns = (outputs - 1) * instance.stride + instance.width;
  const double results = rows * outputs * tiling.thread_channels();
  double loads = instance.width == 0 ? taps * (outputs + 1) : taps + taps / instance.width * columns;
  double products = taps * results;
  if (tiling.kernel == Kernel::depthwise_columns) {
    loads =
        to_double(problem.filter[0]) * (columns * (rows + kColumnTaps - 1) + instance.width * kWordChannels);
    products /= kColumnTaps;
  }
  return to_double(tiling.blocks) * (kThreads / 32.0) *
         (products * costs.multiply + loads * costs.load +
          results * activation_nanoseconds(problem.epilogue, all));
}

}  // namespace

std::string Tiling::key() const {
  switch (kernel) {
    case Kernel::each_output:
      return "each output";
    case Kernel::dense:
      return joined("dense ", filters, " filters ", threads, " threads ", rows, "x", columns);
    case Kernel::depthwise:
      return joined("depthwise ", depthwise.arguments());
    case Kernel::depthwise_columns:
      return joined("depthwise columns ", depthwise.column_arguments());
  }
  return {};
}

int64_t words_of(const ConvProblem& problem) {
  return ceil_divide(problem.channels_per_group(), int64_t{kWordChannels});
}

int64_t filter_blocks_of(const ConvProblem& problem, const Tiling& tiling) {
  return ceil_divide(problem.filters_per_group(), int64_t{tiling.block_filters()});
}

int64_t staged_extent(const ConvProblem& problem, int axis, int64_t outputs) {
  return (outputs - 1) * problem.stride[axis] + (problem.filter[axis] - 1) * problem.dilation[axis] + 1;
}

int64_t strip_rows_of(const ConvProblem& problem, const Tiling& tiling) {
  return problem.batch * problem.output[0] * ceil_divide(problem.output[1], int64_t{tiling.depthwise_rows()});
}

double cost_of(const ConvProblem& problem, const Device& device, const Tiling& tiling) {
  const Costs& all = costs_of(device);
  const auto& costs = all.quantised;
  const double multiprocessors = std::max(1, device.multiprocessors);
  const double memory = to_double(problem.tensor_bytes()) / costs.memory;
  if (tiling.kernel == Kernel::each_output) {
    const double products = to_double(problem.operations()) / 2;
    const double waiting =
        costs.latency * products / to_double(std::max<int64_t>(1, problem.result_elements()));
    return costs.launch + waiting + overlapped({products * costs.product / 1e3 / multiprocessors, memory});
  }
  const double total = tiling.kernel == Kernel::dense ? dense_cost(problem, all, tiling)
                                                      : depthwise_cost(problem, all, tiling);
  // The multiprocessor with the most blocks ends last.
  const double blocks = to_double(tiling.blocks);
  const double most = total * std::ceil(blocks / multiprocessors) / blocks;
  return costs.launch + costs.begin + overlapped({most, memory});
}

void search(const ConvProblem& problem, const Device& device, Candidates<Tiling>& found) {
  Tiling each_output;
  each_output.blocks = std::min(kMaxBlocks, ceil_divide(problem.result_elements(), int64_t{kThreads}));
  each_output.cost = cost_of(problem, device, each_output);
  found.add(each_output);
  // The prepared weights of constants are no scratch memory, but others are prepared into it.
  if (device.lends_scratch && problem.epilogue.pool.kind == PoolKind::none && has_32_bit_indices(problem)) {
    const bool is_nhwc = problem.layouts.input == Layout::nhwc && problem.layouts.output == Layout::nhwc;
    if (problem.is_depthwise() && is_nhwc && problem.in_channels % kWordChannels == 0) {
      add_depthwise(problem, device, found);
    } else if (problem.filters_per_group() > 1) {
      add_dense(problem, device, found);
    }
  }
}

}  // namespace convswap::quantised
