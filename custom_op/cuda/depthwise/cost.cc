#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>
#include <vector>

#include "conv/arithmetic.h"
#include "cuda/depthwise/arguments.h"
#include "cuda/depthwise/family.h"
#include "cuda/host/estimate.h"
#include "cuda/host/launch.h"

namespace convswap::depthwise {
namespace {

constexpr int kBlockThreads[] = {64, 96, 128, 192, 256};
constexpr int kBlockPlanes[] = {1, 2, 4, 8, 16};
constexpr int64_t kMostRows = 64, kMostColumns = 1024;
// Shared memory with which a multiprocessor still holds three blocks.
constexpr int64_t kBytesForThree = 72 * 1024;

// The kernel that computes the problem.
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

// Whether planes of the output and of x have the same numbers.
bool is_flat(const ConvProblem& problem) {
  return problem.filters_per_group() == 1 && problem.filter[0] == 1 && problem.stride[0] == 1 &&
         problem.input[0] == problem.output[0];
}

// An extent cut into as many parts as `most` asks for, or into 2, 4, ... times as many.
std::vector<int> parts_of(int64_t extent, int64_t most, int64_t multiple) {
  std::vector<int> parts;
  for (int64_t count = ceil_divide(extent, most); parts.size() < 5; count *= 2) {
    const int64_t part = ceil_divide(ceil_divide(extent, count), multiple) * multiple;
    if (!parts.empty() && part == parts.back()) break;
    parts.push_back(static_cast<int>(part));
    if (part <= 2 * multiple) break;
  }
  return parts;
}

class Search {
 public:
  Search(const ConvProblem& problem, const Device& device)
      : problem_(problem), device_(device), instance_(instance_for(problem)), is_flat_(is_flat(problem)) {}

  std::optional<Tiling> best() {
    // Where there are few rows, a thread goes along them.
    const bool goes_along = problem_.output[1] < 4 && !instance_.slides;
    for (const int columns : parts_of(problem_.output[2], kMostColumns, 4)) {
      for (const int rows : parts_of(problem_.output[1], goes_along ? 1 : kMostRows, 1)) {
        for (const int planes : kBlockPlanes) {
          for (int divisor = 1; divisor <= 16; divisor *= 2) {
            if (std::optional<Tiling> own = tile(planes, rows, columns, goes_along, divisor)) {
              consider_threads(*own);
            }
          }
        }
      }
    }
    return best_;
  }

 private:
  int64_t reach(int axis, int64_t extent) const {
    return (extent - 1) * problem_.stride[axis] + (problem_.filter[axis] - 1) * problem_.dilation[axis] + 1;
  }

  // Everything but the threads; nothing where it cannot be.
  std::optional<Tiling> tile(int planes, int rows, int columns, bool goes_along, int divisor) const {
    Tiling tiling;
    tiling.instance = instance_;
    tiling.planes = planes;
    tiling.rows = std::min(rows, static_cast<int>(problem_.output[1]));
    tiling.columns = std::min(columns, static_cast<int>(problem_.output[2]));
    const int walked = goes_along ? tiling.columns : tiling.rows;
    // Along a row threads side by side read and write what lies side by side.
    const bool are_few = goes_along && divisor > 1 && walked / divisor < 32;
    if (divisor > walked || are_few || (!goes_along && divisor > 4)) return std::nullopt;
    // Along a row a thread's outputs lie as far apart as there are threads side by side.
    tiling.step_columns = goes_along ? static_cast<int>(ceil_divide(walked, divisor)) : 0;
    tiling.strip_steps = goes_along ? divisor : static_cast<int>(ceil_divide(walked, divisor));
    tiling.strips_across = goes_along ? tiling.step_columns : tiling.columns;
    const int bands = goes_along ? tiling.rows : static_cast<int>(ceil_divide(walked, tiling.strip_steps));
    tiling.strips = tiling.strips_across * planes * bands;
    place_window(tiling);
    const int64_t tiles =
        ceil_divide(problem_.output[1], tiling.rows) * ceil_divide(problem_.output[2], tiling.columns);
    tiling.blocks = ceil_divide(problem_.batch * problem_.out_channels * problem_.output[0], planes) * tiles;
    return tiling;
  }

  // How many columns rows of the image and of the tile are multiples of.
  int most_together(const Tiling& tiling) const {
    const bool is_cut = tiling.columns < problem_.output[2];
    int together = kMostTogether;
    while (problem_.input[2] % together != 0 ||
           (is_cut && tiling.columns * problem_.stride[2] % together != 0)) {
      together /= 2;
    }
    return together;
  }

  void place_window(Tiling& tiling) const {
    const int64_t width = reach(2, tiling.columns), rows = reach(1, tiling.rows);
    // Rows that are too long for the threads, as of long filters, are loaded number by number.
    tiling.is_flat = is_flat_ && width + kMostTogether <= kMostThreads * most_together(tiling);
    tiling.together = tiling.is_flat ? most_together(tiling) : 1;
    const int64_t beyond = problem_.pad_begin[2] % tiling.together;
    tiling.window_left = beyond == 0 ? 0 : static_cast<int>(tiling.together - beyond);
    const int64_t loads = ceil_divide(width + tiling.window_left, tiling.together);
    const int64_t pitch = loads * tiling.together;
    // The threads of a plane go on in the bank behind those of the plane before.
    int64_t plane = rows * pitch;
    const int64_t bank = tiling.strips_across * problem_.stride[2] % 32 / tiling.together * tiling.together;
    if (tiling.planes > 1) plane += (bank - plane % 32 + 32) % 32;
    const int64_t words = ceil_divide(plane * tiling.planes * problem_.filter[0], 4) * 4;
    const int64_t sources = source_words(static_cast<int>(tiling.planes * problem_.filter[0]));
    const int64_t filters = tiling.planes * (problem_.filter_size() + 1);
    tiling.window_rows = static_cast<int>(rows);
    tiling.window_loads = static_cast<int>(loads);
    tiling.window_pitch = static_cast<int>(pitch);
    tiling.window_plane = static_cast<int>(plane);
    tiling.window_words = static_cast<int>(words);
    tiling.shared_bytes = (sources + words + filters) * 4;
  }

  void consider_threads(Tiling& tiling) {
    if (tiling.shared_bytes > device_.shared_memory_per_block) return;
    if (best_ && tiling.shared_bytes > std::max(kBytesForThree, best_->shared_bytes)) return;
    for (const int threads : kBlockThreads) {
      // Each loads the same columns of many rows.
      if (tiling.is_flat && tiling.window_loads > threads) continue;
      tiling.threads = threads;
      tiling.cost = cost_of(tiling);
      if (!best_ || tiling.cost < best_->cost) best_ = tiling;
      if (threads >= tiling.strips) break;
    }
  }

  // What a thread's loads of the window take, in instructions.
  double load_instructions(const Tiling& tiling) const {
    const int64_t bytes = tiling.together * static_cast<int64_t>(size_of(problem_.type));
    const int64_t lines = tiling.planes * problem_.filter[0] * tiling.window_rows;
    if (!tiling.is_flat) return 70 * number(ceil_divide(lines * tiling.window_loads, tiling.threads));
    const int64_t at_a_time = bytes == 16 ? 4 : 8;
    const int64_t rounds = ceil_divide(ceil_divide(lines, tiling.threads / tiling.window_loads), at_a_time);
    const double each = 18 + (size_of(problem_.type) < 4 ? 2.0 * tiling.together : 0);
    return number(rounds) * (number(at_a_time) * each + 10);
  }

  // What a strip takes, in instructions, or in cycles of shared memory where these are more.
  double strip_instructions(const Tiling& tiling) const {
    const double taps = number(problem_.filter_size()), steps = tiling.strip_steps;
    constexpr double kBegin = 60, kResult = 9;
    const double activation = activation_cycles(problem_.epilogue);  // as if each were an instruction
    if (instance_.slides) {
      return (steps + instance_.rows - 1) * (taps + instance_.width + 3) + steps * (kResult + activation) +
             taps + kBegin;
    }
    if (instance_.rows > 0) {
      const double conflicts = number(std::gcd(problem_.stride[2], int64_t{32}));
      return steps * (std::max(2 * taps + 14, 4 * taps * conflicts) + activation) + taps + kBegin;
    }
    const double rows = number(problem_.filter[0] * problem_.filter[1]);
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
    const double of_multiprocessor = number(tiling.blocks) / number(multiprocessors);
    const double loads = load_instructions(tiling), strip = strip_instructions(tiling);
    const double whole_rows =
        number(problem_.output[1]) / number(ceil_divide(problem_.output[1], tiling.rows) * tiling.rows);
    const double of_block =
        number(warps) * (loads + kBegin) + number(ceil_divide(tiling.strips, 32)) * strip * whole_rows;
    const double beside = std::min(number(resident), std::max(1.0, of_multiprocessor));
    const double blocks =
        of_multiprocessor < number(resident) ? std::ceil(of_multiprocessor) : of_multiprocessor;
    const double issue =
        kIssue * (1 + kFewWarps / (beside * number(warps))) * blocks * of_block / 4 / kCyclesPerNanosecond;
    const double memory =
        kMemory * number(problem_.tensor_bytes()) / (kBytesPerNanosecond * number(multiprocessors));
    const double both = std::max(issue, memory) + std::min(issue, memory) * kOther / std::sqrt(beside);
    const double waves = std::max(1.0, of_multiprocessor / number(resident));
    const double of_thread = number(ceil_divide(tiling.strips, tiling.threads)) * strip;
    const double latency = kWaveNanoseconds + kStripNanoseconds * of_thread + kLoadNanoseconds * loads +
                           (tiling.is_flat ? 0 : kSourceNanoseconds);
    // What the tilings that it takes were measured to need beside sliding_rows, which is fitted later.
    constexpr double kMore = 1.1;
    return kLaunchNanoseconds + kMore * (both + waves * latency + kBlockNanoseconds * of_multiprocessor);
  }

  const ConvProblem& problem_;
  const Device& device_;
  const Instance& instance_;
  const bool is_flat_;
  std::optional<Tiling> best_;
};

}  // namespace

std::optional<Tiling> best_tiling(const ConvProblem& problem, const Device& device) {
  return Search(problem, device).best();
}

}  // namespace convswap::depthwise
