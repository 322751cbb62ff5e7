#include <algorithm>
#include <cmath>
#include <vector>

#include "conv/arithmetic.h"
#include "cuda/costs/cost_table.h"
#include "cuda/depthwise/arguments.h"
#include "cuda/depthwise/family.h"
#include "cuda/host/candidates.h"
#include "cuda/host/estimate.h"
#include "cuda/host/launch.h"

namespace convswap::depthwise {
namespace {

constexpr int kBlockThreads[] = {64, 96, 128, 192, 256};
constexpr int kBlockPlanes[] = {1, 2, 4, 8, 16};
constexpr int64_t kMaxTileRows = 64, kMaxTileColumns = 1024;
// Largest shared memory of a block with which a multiprocessor still holds three blocks.
constexpr int64_t kBytesForThreeBlocks = 72 * 1024;

// The kernel instance that computes the problem. The last one computes any problem.
const Instance& instance_for(const ConvProblem& problem) {
  const bool is_plane = problem.filter[0] == 1;
  const bool slides = problem.stride[1] == 1 && problem.dilation[1] == 1 && problem.dilation[2] == 1 &&
                      problem.stride[2] == 1;
  for (const Instance& instance : kInstances) {
    if (is_plane && instance.rows == problem.filter[1] && instance.width == problem.filter[2] &&
        (slides || !instance.slides)) {
      return instance;
    }
  }
  return *std::rbegin(kInstances);
}

// True if output plane i reads plane i of x only.
bool is_contiguous(const ConvProblem& problem) {
  return problem.filters_per_group() == 1 && problem.filter[0] == 1 && problem.stride[0] == 1 &&
         problem.input[0] == problem.output[0];
}

// Tile extents to try along an axis, multiples of `multiple`: the extent cut into as few tiles of at most
// `max_tile` as possible, and into 2, 4, ... times as many.
std::vector<int> tile_extents(int64_t extent, int64_t max_tile, int64_t multiple) {
  std::vector<int> tiles;
  for (int64_t count = ceil_divide(extent, max_tile); tiles.size() < 5; count *= 2) {
    const int64_t tile = ceil_divide(ceil_divide(extent, count), multiple) * multiple;
    if (!tiles.empty() && tile == tiles.back()) break;
    tiles.push_back(static_cast<int>(tile));
    if (tile <= 2 * multiple) break;
  }
  return tiles;
}

// Outputs that a thread computes at a time with an instance for filters of any size (kernel.cuh).
constexpr int kOutputsAtOnce = 4;

// Instructions of a thread that load the window and the filters.
double load_instructions(const ConvProblem& problem, const Device& device, const Tiling& tiling) {
  const auto& costs = costs_of(device).depthwise;
  const int64_t filter_elements = tiling.planes * (problem.filter_size() + 1);  // and biases
  const double filters = to_double(ceil_divide(filter_elements, tiling.threads)) * costs.element;
  const int64_t lines = tiling.planes * problem.filter[0] * tiling.window_rows;
  if (!tiling.is_contiguous) {
    return to_double(ceil_divide(lines * tiling.window_pitch, tiling.threads)) * costs.element + filters;
  }
  // Threads load so many vectors at a time (window.cuh).
  const int64_t vector_bytes = tiling.vector_columns * static_cast<int64_t>(bytes_per_element(problem.type));
  const int64_t in_flight = vector_bytes == 16 ? 4 : 8;
  const int64_t loads = ceil_divide(lines, tiling.threads / tiling.window_loads);
  return to_double(round_up(loads, in_flight)) * costs.load + filters;
}

// Instructions of a strip.
double strip_instructions(const ConvProblem& problem, const Device& device, const Tiling& tiling) {
  const auto& costs = costs_of(device).depthwise;
  const Instance& instance = tiling.instance;
  const double taps = to_double(problem.filter_size()), outputs = tiling.strip_outputs;
  // Lanes that meet in a bank: the greatest common divisor of the stride and 32 banks.
  const double conflicts = to_double(std::min<int64_t>(problem.stride[2] & -problem.stride[2], 32));
  const double output =
      costs.output + costs.activation * activation_cycles(problem.epilogue, costs_of(device));
  if (instance.rows == 0) {
    const double filter_rows = to_double(problem.filter[0] * problem.filter[1]);
    const double tap = kOutputsAtOnce + costs.shared * (kOutputsAtOnce * conflicts + 1);
    return costs.strip + std::ceil(outputs / kOutputsAtOnce) *
                             (taps * tap + filter_rows * costs.filter_row + kOutputsAtOnce * output);
  }
  const double begin = costs.strip + costs.shared * taps;
  if (!instance.slides) return begin + outputs * (taps * (1 + costs.shared * conflicts) + output);
  return begin + (outputs + instance.rows - 1) * (taps + costs.shared * instance.width) + outputs * output;
}

// The time is that of instruction issue and memory together, the instructions of a thread one after the other
// for each wave of blocks, and the start of blocks. `strip`: instructions of a strip.
double cost_with(const ConvProblem& problem, const Device& device, const Tiling& tiling, double strip) {
  const auto& costs = costs_of(device).depthwise;
  const double warps = tiling.threads / 32;
  const double resident = to_double(std::max<int64_t>(
      1, std::min<int64_t>({2048 / tiling.threads, 65'536 / (tiling.instance.registers * tiling.threads),
                            device.shared_memory_per_multiprocessor / (tiling.shared_bytes + 1024)})));
  const double blocks = to_double(tiling.blocks) / std::max(1, device.multiprocessors);
  const double loads = load_instructions(problem, device, tiling);
  const double block_instructions = warps * loads + to_double(ceil_divide(tiling.strips, 32)) * strip;
  // Blocks of two launches share a multiprocessor after an early start. If not all blocks of both are
  // resident, some multiprocessors get more blocks than others.
  const double uneven = costs.tail * resident * std::sqrt(std::clamp(2 * blocks / resident - 1, 0.0, 1.0));
  const double issue = (blocks + uneven) * block_instructions / 4 * costs.instruction;
  const double memory = to_double(problem.tensor_bytes()) / costs.memory;
  const double thread_strips = to_double(ceil_divide(tiling.strips, tiling.threads));
  const double residual =
      problem.epilogue.has_residual ? costs.residual * thread_strips * tiling.strip_outputs : 0;
  const double latency = costs.latency * (loads + thread_strips * strip) + residual +
                         (tiling.is_contiguous ? 0 : costs.plane_offsets);
  const double waves = std::max(1.0, blocks / resident);
  return costs.launch + overlapped({issue, memory}) + waves * latency + costs.block * blocks;
}

class Search {
 public:
  Search(const ConvProblem& problem, const Device& device, bool keeps_all)
      : found_(keeps_all),
        problem_(problem),
        device_(device),
        instance_(instance_for(problem)),
        is_contiguous_(is_contiguous(problem)) {}

  Candidates<Tiling> run() && {
    // If there are few rows, strips go along them.
    const bool along_row = problem_.output[1] < 4 && !instance_.slides;
    for (const int columns : tile_extents(problem_.output[2], kMaxTileColumns, 4)) {
      for (const int rows : tile_extents(problem_.output[1], along_row ? 1 : kMaxTileRows, 1)) {
        for (const int planes : kBlockPlanes) {
          for (int divisor = 1; divisor <= 16; divisor *= 2) {
            if (std::optional<Tiling> tiling = tile(planes, rows, columns, along_row, divisor)) {
              consider_threads(*tiling);
            }
          }
        }
      }
    }
    return std::move(found_);
  }

 private:
  int64_t reach(int axis, int64_t extent) const {
    return (extent - 1) * problem_.stride[axis] + (problem_.filter[axis] - 1) * problem_.dilation[axis] + 1;
  }

  // A tiling without its threads, or nullopt if `divisor` does not suit the tile. The divisor is the number
  // of strips that share a column, or the number of a strip's outputs along a row.
  std::optional<Tiling> tile(int planes, int rows, int columns, bool along_row, int divisor) const {
    Tiling tiling;
    tiling.instance = instance_;
    tiling.planes = planes;
    tiling.rows = std::min(rows, static_cast<int>(problem_.output[1]));
    tiling.columns = std::min(columns, static_cast<int>(problem_.output[2]));
    const int extent = along_row ? tiling.columns : tiling.rows;
    // Along a row the threads of a warp access adjacent elements, so a row has at least 32 strips.
    const bool too_few_strips = along_row && divisor > 1 && extent / divisor < 32;
    if (divisor > extent || too_few_strips || (!along_row && divisor > 4)) return std::nullopt;
    // The strips of a row are interleaved: adjacent threads compute adjacent outputs.
    tiling.column_step = along_row ? static_cast<int>(ceil_divide(extent, divisor)) : 0;
    tiling.strip_outputs = along_row ? divisor : static_cast<int>(ceil_divide(extent, divisor));
    tiling.strips_across = along_row ? tiling.column_step : tiling.columns;
    const int bands = along_row ? tiling.rows : static_cast<int>(ceil_divide(extent, tiling.strip_outputs));
    tiling.strips = tiling.strips_across * planes * bands;
    set_window(tiling);
    const int64_t tiles =
        ceil_divide(problem_.output[1], tiling.rows) * ceil_divide(problem_.output[2], tiling.columns);
    tiling.blocks = ceil_divide(problem_.batch * problem_.out_channels * problem_.output[0], planes) * tiles;
    return tiling;
  }

  // Columns per vector load: the rows of the image begin at multiples of it, and so do the tiles.
  int vector_columns_of(const Tiling& tiling) const {
    const bool is_cut = tiling.columns < problem_.output[2];
    int vector_columns = kMaxVectorColumns;
    while (problem_.input[2] % vector_columns != 0 ||
           (is_cut && tiling.columns * problem_.stride[2] % vector_columns != 0)) {
      vector_columns /= 2;
    }
    return vector_columns;
  }

  void set_window(Tiling& tiling) const {
    const int64_t width = reach(2, tiling.columns), rows = reach(1, tiling.rows);
    // Rows longer than one vector load per thread are loaded element by element.
    tiling.is_contiguous =
        is_contiguous_ && width + kMaxVectorColumns <= kMaxThreads * vector_columns_of(tiling);
    tiling.vector_columns = tiling.is_contiguous ? vector_columns_of(tiling) : 1;
    const int64_t pad = problem_.pad_begin[2] % tiling.vector_columns;
    tiling.alignment_columns = pad == 0 ? 0 : static_cast<int>(tiling.vector_columns - pad);
    const int64_t loads = ceil_divide(width + tiling.alignment_columns, tiling.vector_columns);
    const int64_t pitch = loads * tiling.vector_columns;
    // Pads the plane so that the threads of a plane begin in the bank after those of the preceding plane.
    int64_t plane = rows * pitch;
    const int64_t bank =
        tiling.strips_across * problem_.stride[2] % 32 / tiling.vector_columns * tiling.vector_columns;
    if (tiling.planes > 1) plane += (bank - plane % 32 + 32) % 32;
    const int64_t words = ceil_divide(plane * tiling.planes * problem_.filter[0], 4) * 4;
    const int64_t plane_offsets = plane_offset_words(static_cast<int>(tiling.planes * problem_.filter[0]));
    const int64_t filters = tiling.planes * (problem_.filter_size() + 1);
    tiling.window_rows = static_cast<int>(rows);
    tiling.window_loads = static_cast<int>(loads);
    tiling.window_pitch = static_cast<int>(pitch);
    tiling.window_plane = static_cast<int>(plane);
    tiling.window_words = static_cast<int>(words);
    tiling.shared_bytes = (plane_offsets + words + filters) * 4;
  }

  void consider_threads(Tiling& tiling) {
    if (tiling.shared_bytes > device_.shared_memory_per_block) return;
    const std::optional<Tiling>& best = found_.best();
    if (best && tiling.shared_bytes > std::max(kBytesForThreeBlocks, best->shared_bytes)) return;
    const double strip = strip_instructions(problem_, device_, tiling);
    for (const int threads : kBlockThreads) {
      // A thread has one vector load per line at most.
      if (tiling.is_contiguous && tiling.window_loads > threads) continue;
      tiling.threads = threads;
      tiling.cost = cost_with(problem_, device_, tiling, strip);
      found_.add(tiling);
      if (threads >= tiling.strips) break;
    }
  }

  Candidates<Tiling> found_;
  const ConvProblem& problem_;
  const Device& device_;
  const Instance& instance_;
  const bool is_contiguous_;
};

}  // namespace

double cost_of(const ConvProblem& problem, const Device& device, const Tiling& tiling) {
  return cost_with(problem, device, tiling, strip_instructions(problem, device, tiling));
}

std::optional<Tiling> best_tiling(const ConvProblem& problem, const Device& device) {
  return Search(problem, device, false).run().best();
}

std::vector<Tiling> cheapest_tilings(const ConvProblem& problem, const Device& device) {
  return Search(problem, device, true).run().sorted();
}

}  // namespace convswap::depthwise
