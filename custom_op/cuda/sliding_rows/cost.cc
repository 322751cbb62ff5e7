#include <algorithm>
#include <cmath>

#include "conv/arithmetic.h"
#include "cuda/host/estimate.h"
#include "cuda/sliding_rows/arguments.h"
#include "cuda/sliding_rows/family.h"

namespace convswap::sliding_rows {
namespace {

// Sets the distribution of a row's pieces over lanes and warps.
void set_pieces(const ConvProblem& problem, Tiling& tiling) {
  const Instance& instance = tiling.instance;
  const int piece = instance.outputs * instance.stride;
  const int left_halo = halo_lanes(instance.pad_left, piece);
  const int right_halo = halo_lanes(std::max(0, instance.taps - instance.stride - instance.pad_left), piece);
  // The window of the last outputs may reach pieces that have no outputs.
  const int64_t pieces =
      std::max(ceil_divide(problem.output[2], instance.outputs), ceil_divide(problem.input[2], piece));
  tiling.lanes = static_cast<int>(std::min<int64_t>(pieces, kWarpSize));
  tiling.warp_planes = kWarpSize / tiling.lanes;
  if (pieces <= kWarpSize) return;
  tiling.segment_pieces = kWarpSize - left_halo - right_halo;
  tiling.segments = static_cast<int>(ceil_divide(pieces - left_halo - right_halo, tiling.segment_pieces));
}

// Nanoseconds on an H200: fitted to 22 layers with up to 14 strip heights each, at batches 64 and 1, of both
// sizes of numbers, with and without an activation; see benchmarks/sliding_rows.md.
double cost_of(const ConvProblem& problem, const Device& device, const Tiling& tiling) {
  constexpr double kLaunchNanoseconds = 950, kCyclesPerNanosecond = 1.755, kBytesPerNanosecond = 32.6;
  constexpr double kMemory = 1.06;  // of the bytes' time
  // The shorter of instructions and bytes adds such a part of its time to the longer.
  constexpr double kOther = 0.27;
  constexpr double kBegin = 220, kRow = 17, kOutput = 5.1;         // instructions
  constexpr double kRowNanoseconds = 58, kInstructionsOfRow = 78;  // of a row, alone
  // So many times as long where rows come from memory, asked for one at a time: what leaves the second-level
  // cache nothing to keep from one run to the next.
  constexpr double kFromMemory = 1.4, kCachedBytes = 4e7;
  const Instance& instance = tiling.instance;
  const double taps = to_double(instance.taps), outputs = to_double(instance.outputs),
               stride = to_double(instance.stride);
  const double multiplications = taps * taps * outputs / stride;  // of a row of x
  const double of_output = kOutput + activation_cycles(problem.epilogue);
  const double of_row = multiplications + kRow + of_output * outputs / stride;
  const double rows = (to_double(problem.output[1]) / tiling.strips - 1) * stride + taps;
  const double of_block = kWarpsPerBlock * (kBegin + 2 * taps * taps + rows * of_row);

  const double multiprocessors = std::max(1, device.multiprocessors);
  const double resident = min_blocks_per_sm(instance.taps);
  const double each = to_double(tiling.blocks) / multiprocessors;
  const double blocks = each < resident ? std::ceil(each) : each;
  const double issue = blocks * of_block / 4 / kCyclesPerNanosecond;
  const double bytes = to_double(problem.tensor_bytes());
  const double memory = kMemory * bytes / (kBytesPerNanosecond * multiprocessors);
  const double beside = std::clamp(each, 1.0, resident);
  const double both = std::max(issue, memory) + kOther * std::min(issue, memory) / std::sqrt(beside);
  const double longest = (tiling.strip_rows - 1) * stride + taps;
  double latency = kRowNanoseconds * longest * (1 + multiplications / kInstructionsOfRow);
  const int period = max_output_rows_per_input_row(instance.taps, instance.stride) * instance.stride;
  const bool asks_for_one =
      prefetched_rows(instance.taps, period, static_cast<int>(bytes_per_element(problem.type))) == 1;
  if (asks_for_one && bytes > kCachedBytes) latency *= kFromMemory;
  return kLaunchNanoseconds + both + std::ceil(each / resident) * latency;
}

}  // namespace

const Instance* instance_for(const ConvProblem& problem) {
  const bool is_image = problem.spatial_rank == 2 && problem.filter[1] == problem.filter[2] &&
                        problem.stride[1] == problem.stride[2] && problem.dilation[1] == 1 &&
                        problem.dilation[2] == 1;
  if (!is_image) return nullptr;
  for (const Instance& instance : kInstances) {
    if (instance.taps == problem.filter[2] && instance.stride == problem.stride[2] &&
        instance.pad_left == problem.pad_begin[2] && problem.input[2] % instance.vector_columns == 0) {
      return &instance;
    }
  }
  return nullptr;
}

std::vector<Tiling> tilings_of(const ConvProblem& problem, const Device& device, const Instance& instance) {
  Tiling tiling;
  tiling.instance = instance;
  set_pieces(problem, tiling);
  const int64_t planes = problem.batch * problem.out_channels;
  const int64_t groups = ceil_divide(planes, int64_t{kWarpsPerBlock} * tiling.warp_planes);
  std::vector<Tiling> tilings;
  for (const int count : {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 128, 256}) {
    const int64_t rows = ceil_divide(problem.output[1], count);
    if (!tilings.empty() && rows == tilings.back().strip_rows) continue;
    tiling.strip_rows = static_cast<int>(rows);
    tiling.strips = static_cast<int>(ceil_divide(problem.output[1], rows));
    tiling.blocks = groups * tiling.strips * tiling.segments;
    tiling.cost = cost_of(problem, device, tiling);
    tilings.push_back(tiling);
    if (rows <= 2) break;
  }
  std::ranges::stable_sort(tilings, {}, &Tiling::cost);
  return tilings;
}

}  // namespace convswap::sliding_rows
