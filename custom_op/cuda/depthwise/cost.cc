#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>
#include <vector>

#include "conv/arithmetic.h"
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
    for (const int threads : kBlockThreads) {
      // A thread has one vector load per line at most.
      if (tiling.is_contiguous && tiling.window_loads > threads) continue;
      tiling.threads = threads;
      tiling.cost = cost_of(tiling);
      found_.add(tiling);
      if (threads >= tiling.strips) break;
    }
  }

  // What a thread's loads of the window take, in instructions.
  double load_instructions(const Tiling& tiling) const {
    const int64_t bytes = tiling.vector_columns * static_cast<int64_t>(bytes_per_element(problem_.type));
    const int64_t lines = tiling.planes * problem_.filter[0] * tiling.window_rows;
    if (!tiling.is_contiguous)
      return 70 * to_double(ceil_divide(lines * tiling.window_loads, tiling.threads));
    const int64_t at_a_time = bytes == 16 ? 4 : 8;
    const int64_t rounds = ceil_divide(ceil_divide(lines, tiling.threads / tiling.window_loads), at_a_time);
    const double each = 18 + (bytes_per_element(problem_.type) < 4 ? 2.0 * tiling.vector_columns : 0);
    return to_double(rounds) * (to_double(at_a_time) * each + 10);
  }

  // What a strip takes, in instructions, or in cycles of shared memory where these are more.
  double strip_instructions(const Tiling& tiling) const {
    const double taps = to_double(problem_.filter_size()), steps = tiling.strip_outputs;
    constexpr double kBegin = 60, kResult = 9;
    const double activation =
        activation_cycles(problem_.epilogue, costs_of(device_));  // as if each were an instruction
    if (instance_.slides) {
      return (steps + instance_.rows - 1) * (taps + instance_.width + 3) + steps * (kResult + activation) +
             taps + kBegin;
    }
    if (instance_.rows > 0) {
      const double conflicts = to_double(std::gcd(problem_.stride[2], int64_t{32}));
      return steps * (std::max(2 * taps + 14, 4 * taps * conflicts) + activation) + taps + kBegin;
    }
    const double rows = to_double(problem_.filter[0] * problem_.filter[1]);
    return std::ceil(steps / 4) * (taps * 28 + rows * 12 + 90 + 4 * activation) + kBegin;
  }

  // Nanoseconds on an H200: fitted to some thousand tilings of layers of two dimensions and one; see
  // benchmarks/depthwise.md.
  double cost_of(const Tiling& tiling) const {
    constexpr double kLaunchNanoseconds = 1300, kCyclesPerNanosecond = 1.755, kBytesPerNanosecond = 32.6;
    constexpr double kIssue = 0.635, kMemory = 0.9;
    // How much longer the longer of both takes for the other: the less the more blocks take turns. And how
    // much longer few warps take.
    constexpr double kOther = 0.955, kFewWarps = 0.793;
    constexpr double kWaveNanoseconds = 350, kBlockNanoseconds = 47;
    constexpr double kStripNanoseconds = 0.71, kLoadNanoseconds = 2.05;  // of an instruction, alone
    constexpr double kBegin = 180, kSourceNanoseconds = 1000;
    const int64_t multiprocessors = std::max(1, device_.multiprocessors);
    const int64_t warps = tiling.threads / 32;
    const int64_t resident = std::max<int64_t>(
        1, std::min<int64_t>({2048 / tiling.threads, 65'536 / (instance_.registers * tiling.threads),
                              device_.shared_memory_per_multiprocessor / (tiling.shared_bytes + 1024)}));
    const double of_multiprocessor = to_double(tiling.blocks) / to_double(multiprocessors);
    const double loads = load_instructions(tiling), strip = strip_instructions(tiling);
    const double whole_rows =
        to_double(problem_.output[1]) / to_double(ceil_divide(problem_.output[1], tiling.rows) * tiling.rows);
    const double of_block =
        to_double(warps) * (loads + kBegin) + to_double(ceil_divide(tiling.strips, 32)) * strip * whole_rows;
    const double beside = std::min(to_double(resident), std::max(1.0, of_multiprocessor));
    const double blocks =
        of_multiprocessor < to_double(resident) ? std::ceil(of_multiprocessor) : of_multiprocessor;
    const double issue =
        kIssue * (1 + kFewWarps / (beside * to_double(warps))) * blocks * of_block / 4 / kCyclesPerNanosecond;
    const double memory =
        kMemory * to_double(problem_.tensor_bytes()) / (kBytesPerNanosecond * to_double(multiprocessors));
    const double both = std::max(issue, memory) + std::min(issue, memory) * kOther / std::sqrt(beside);
    const double waves = std::max(1.0, of_multiprocessor / to_double(resident));
    const double of_thread = to_double(ceil_divide(tiling.strips, tiling.threads)) * strip;
    const double latency = kWaveNanoseconds + kStripNanoseconds * of_thread + kLoadNanoseconds * loads +
                           (tiling.is_contiguous ? 0 : kSourceNanoseconds);
    // What the tilings that it takes were measured to need beside sliding_rows, which is fitted later.
    constexpr double kMore = 1.1;
    return kLaunchNanoseconds + kMore * (both + waves * latency + kBlockNanoseconds * of_multiprocessor);
  }

  Candidates<Tiling> found_;
  const ConvProblem& problem_;
  const Device& device_;
  const Instance& instance_;
  const bool is_contiguous_;
};

}  // namespace

std::optional<Tiling> best_tiling(const ConvProblem& problem, const Device& device) {
  return Search(problem, device, false).run().best();
}

std::vector<Tiling> cheapest_tilings(const ConvProblem& problem, const Device& device) {
  return Search(problem, device, true).run().sorted();
}

}  // namespace convswap::depthwise
