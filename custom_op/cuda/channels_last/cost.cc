// Chooses the tiling of channels_last with the lowest estimated time, without measuring.

#include <algorithm>
#include <cmath>

#include "conv/arithmetic.h"
#include "cuda/channels_last/derived.h"
#include "cuda/channels_last/family.h"
#include "cuda/costs/cost_table.h"
#include "cuda/host/estimate.h"
#include "cuda/host/shared_layout.h"
#include "cuda/host/tensor_map.h"

namespace convswap::channels_last {
namespace {

constexpr int64_t kMaxBoxExtent = 256;
constexpr std::size_t kMaxColumnTilings = 12, kMaxRowTilings = 5;
constexpr int kReservedSharedBytes = 1024;  // by the driver, for each block
constexpr int kMinPixelStages = 2, kMinWeightStages = 3;
// What loads of two blocks take of the time by the coefficient `cache`, which is fitted to single blocks and
// partly hidden there: 256>512 with stride 2 loads 6.0 TB/s.
constexpr double kLoadingOfTwo = 2;
// Most units of a short main loop: it ends before a residual has come, and results take longer.
constexpr int64_t kShortUnits = 4;

// Stride phases and shifts of the filter taps along one axis.
struct AxisTaps {
  std::vector<int64_t> phases;    // first row or column of each that a tap reads
  std::vector<int64_t> phase_of;  // index of each tap's phase
  std::vector<int64_t> shift_of;  // distance of each tap from the output, within its phase
  int64_t max_shift = 0;
};

AxisTaps taps_of(const ConvProblem& problem, int axis) {
  AxisTaps taps;
  for (int64_t tap = 0; tap < problem.filter[axis]; ++tap) {
    const int64_t offset = tap * problem.dilation[axis], phase = offset % problem.stride[axis];
    auto found = std::ranges::find(taps.phases, phase);
    if (found == taps.phases.end()) found = taps.phases.insert(taps.phases.end(), phase);
    taps.phase_of.push_back(found - taps.phases.begin());
    taps.shift_of.push_back(offset / problem.stride[axis]);
    taps.max_shift = std::max(taps.max_shift, taps.shift_of.back());
  }
  return taps;
}

// Nanoseconds of `kernel`. Blocks compute work tiles one after the other: the tensor cores' time of a tile,
// or the time in which its pixels and weights come from the second-level cache, and what a tile costs
// besides.
double kernel_cost(const ConvProblem& problem, const Device& device, const Tiling& tiling) {
  const auto& costs = costs_of(device).channels_last;
  const double multiprocessors = std::max(1, device.multiprocessors);
  const int64_t chunks = chunks_of_block(problem, tiling);
  const double units = to_double(chunks * problem.filter[1] * problem.filter[2]);
  const double warpgroups = tiling.instance.shares_pixels ? kConsumerWarpgroups : 1;
  const double columns = warpgroups * tiling.instance.positions() * costs.column;
  const double multiplying = units * (costs.unit + columns * terms_of(problem) * row_wgmmas(problem) / 4) +
                             (parts_of(problem) > 1 ? to_double(chunks) * costs.split : 0);
  const double pixel_bytes = to_double(chunks * tiling.loaded_bytes());
  const double weight_bytes = tiling.keeps_weights ? 0 : units * to_double(tiling.weight_stage_bytes());
  const double loading = (pixel_bytes + weight_bytes) * multiprocessors / costs.cache;
  const double outputs = to_double(tiling.outputs()), result_rows = outputs * tiling.result_chunks;
  // Warpgroups that share pixels compute their activations and codes at the same time, each half as fast as
  // one alone. A warpgroup without filters computes none.
  const double of_output =
      problem.is_quantised() ? costs.instruction * instructions_of_code(problem)
      : problem.epilogue.activation == Activation::none
          ? 0
          : (costs.activation_overhead + activation_cycles(problem.epilogue, costs_of(device))) *
                costs.activation;
  const double activating = of_output * outputs *
                            to_double(ceil_divide(problem.filters_per_group(), int64_t{kWgmmaM})) /
                            to_double(tiling.filter_blocks);
  // The results of warpgroups that take turns are stored while the other multiplies.
  const double storing = costs.tile * tiling.result_chunks / tiling.staged_chunks +
                         costs.result * result_rows * (tiling.instance.shares_pixels ? 1 : 0.5);
  const int residents = tiling.splits > 1 ? 1 : tiling.instance.blocks;
  const double waves = std::ceil(to_double(tiling.work_tiles) / (multiprocessors * residents));
  // Two stages of pixels do not hide all loads, if they are loaded again.
  const double exposed = tiling.pixel_stages > 2 || (tiling.splits > 1 && tiling.pixel_stages >= chunks)
                             ? 0
                             : costs.exposed * pixel_bytes * multiprocessors / costs.cache;
  const double blocks = std::min(to_double(tiling.work_tiles * tiling.splits), multiprocessors * residents);
  double latencies = costs.block * blocks;
  // Two work tiles of a block hide each other's latencies.
  if (waves <= 1) latencies += costs.chunk * to_double(chunks);
  if (tiling.splits > 1) latencies += costs.exchange * (1 + blocks / multiprocessors);
  const double filling = std::max(multiplying, loading);
  double tile = filling + storing + activating + exposed;
  // Two blocks on a multiprocessor share the tensor cores, the schedulers and the loads. Other times of one
  // block pass while the other one computes.
  if (residents > 1) {
    const double shared = std::max(multiplying, kLoadingOfTwo * loading);
    tile = std::max({tile, residents * shared, storing + residents * activating});
  }
  const double computing = costs.begin + latencies + waves * tile;
  const double memory = to_double(problem.bytes()) / costs.memory;
  return costs.launch + overlapped({computing, memory});
}

// Nanoseconds of `write_windows`, by its memory traffic.
double windows_cost(const ConvProblem& node, const Derived& derived, const Device& device) {
  if (!derived.has_windows()) return 0;
  const auto& costs = costs_of(device).channels_last;
  const ConvProblem& problem = derived.problem;
  const int64_t codes =
      node.batch * (node.in_channels * node.input_size() + problem.in_channels * problem.input_size());
  return costs.launch + to_double(codes) / costs.memory;
}

class Search {
 public:
  Search(const ConvProblem& problem, const Device& device)
      : problem_(problem),
        device_(device),
        rows_(taps_of(problem, 1)),
        columns_(taps_of(problem, 2)),
        max_positions_(max_positions(problem)) {}

  std::vector<Tiling> run() && {
    std::vector<int64_t> widths = tile_extents(problem_.output[2], max_tile(2, columns_), kMaxColumnTilings);
    // The padding between whole rows may leave them room in a wider box.
    if (widths.front() < problem_.output[2]) widths.insert(widths.begin(), problem_.output[2]);
    // One long row, as joined pixels are, would have no tile of half as many positions.
    if (widths.back() > max_positions_ / 2) {
      widths.push_back(tile_extents(problem_.output[2], max_positions_ / 2, 1).front());
    }
    for (const bool shares_pixels : {false, true}) {
      // Half of a block for 128 filters would have nothing to do.
      if (shares_pixels && problem_.filters_per_group() <= kWgmmaM) continue;
      for (const int64_t columns : widths) {
        // The most rows whose positions a wgmma has, and fewer.
        const int64_t pitch = columns + columns_.max_shift;
        const int64_t max_rows =
            std::clamp<int64_t>((max_positions_ - columns) / pitch + 1, 1, max_tile(1, rows_));
        for (const int64_t rows : tile_extents(problem_.output[1], max_rows, kMaxRowTilings)) {
          add(shares_pixels, 1, rows, columns);
          if (rows < problem_.output[1] || columns < problem_.output[2] || problem_.output[0] > 1) continue;
          for (int64_t images = 2; images <= problem_.batch; ++images) {
            if (!add(shares_pixels, images, rows, columns)) break;
          }
        }
      }
    }
    std::ranges::stable_sort(found_, {}, &Tiling::cost);
    return std::move(found_);
  }

 private:
  // Most positions of a tile: those of the largest instance.
  static int64_t max_positions(const ConvProblem& problem) {
    int64_t positions = 0;
    for (const Instance& each : kInstances) {
      if (each.computes(problem)) positions = std::max<int64_t>(positions, each.positions());
    }
    return positions;
  }

  // Most outputs of a tile along an axis, whose pixels a TMA box holds.
  int64_t max_tile(int axis, const AxisTaps& taps) const {
    return std::max<int64_t>(1, kMaxBoxExtent / problem_.stride[axis] - taps.max_shift);
  }

  // Extents of tiles, at most `max_tile`, that cut an axis into as few tiles as possible, and into more.
  static std::vector<int64_t> tile_extents(int64_t extent, int64_t max_tile, std::size_t max_count) {
    std::vector<int64_t> tiles;
    for (int64_t count = ceil_divide(extent, max_tile); count <= extent && tiles.size() < max_count;
         ++count) {
      const int64_t tile = ceil_divide(extent, count);
      if (tiles.empty() || tile < tiles.back()) tiles.push_back(tile);
    }
    return tiles;
  }

  // The smallest instance for so many positions, of which a multiprocessor runs `blocks` blocks.
  std::optional<Instance> instance_for(bool shares_pixels, int blocks, int64_t positions) const {
    const auto instance = std::ranges::find_if(kInstances, [&](const Instance& each) {
      return each.shares_pixels == shares_pixels && each.blocks == blocks && !each.splits_k &&
             each.positions() >= positions && each.computes(problem_);
    });
    return instance == std::end(kInstances) ? std::nullopt : std::optional(*instance);
  }

  // Adds the tiling if it fits; false if larger tiles cannot fit either.
  bool add(bool shares_pixels, int64_t images, int64_t rows, int64_t columns) {
    Tiling tiling;
    tiling.images = images, tiling.rows = rows, tiling.columns = columns;
    if (problem_.is_quantised()) tiling.result_row_bytes = kWgmmaM;
    // With stride 1 and whole rows, the padding before a row also ends the row above.
    const int64_t pad = problem_.pad_begin[2];
    tiling.pitch = problem_.stride[2] == 1 && columns == problem_.output[2]
                       ? std::max({columns, pad + problem_.input[2], columns + columns_.max_shift - pad})
                       : columns + columns_.max_shift;
    tiling.pitch = std::min(tiling.pitch, columns + columns_.max_shift);
    tiling.box_rows = rows + rows_.max_shift;
    const int64_t positions = (images - 1) * tiling.image_positions() + (rows - 1) * tiling.pitch + columns;
    const std::optional<Instance> instance = instance_for(shares_pixels, 1, positions);
    if (!instance) return false;
    tiling.instance = *instance;
    if (tiling.pitch * problem_.stride[2] > kMaxBoxExtent ||
        tiling.box_rows * problem_.stride[1] > kMaxBoxExtent || images > kMaxBoxExtent) {
      return false;
    }
    for (const int64_t row : rows_.phases) {
      for (const int64_t column : columns_.phases) {
        tiling.phase_rows.push_back(row), tiling.phase_columns.push_back(column);
      }
    }
    // Positions that the last taps of outputs read beyond a box, which are padding.
    const int64_t beyond = std::max<int64_t>(0, columns + columns_.max_shift - tiling.pitch);
    tiling.phase_bytes =
        round_up((images * tiling.image_positions() + beyond) * kRowBytes, int64_t{kSwizzleBytes});
    for (int64_t r = 0; r < problem_.filter[1]; ++r) {
      for (int64_t s = 0; s < problem_.filter[2]; ++s) {
        const int64_t phase =
            rows_.phase_of[r] * static_cast<int64_t>(columns_.phases.size()) + columns_.phase_of[s];
        tiling.tap_offsets.push_back(phase * tiling.phase_bytes +
                                     (rows_.shift_of[r] * tiling.pitch + columns_.shift_of[s]) * kRowBytes);
      }
    }
    const int64_t chunk = kRowBytes / bytes_per_element(problem_.type);
    tiling.channel_chunks = ceil_divide(problem_.channels_per_group(), chunk);
    tiling.filter_blocks = ceil_divide(problem_.filters_per_group(), int64_t{instance->block_filters()});
    tiling.work_tiles = problem_.group * tiling.filter_blocks * problem_.output[0] *
                        ceil_divide(problem_.output[1], rows) * ceil_divide(problem_.output[2], columns) *
                        ceil_divide(problem_.batch, images);
    if (!lay_out(tiling)) return false;
    tiling.cost = kernel_cost(problem_, device_, tiling);
    add_splits(tiling);
    add_pairs(tiling, positions);
    found_.push_back(std::move(tiling));
    return true;
  }

  // Adds the tilings with K chunks split among the blocks of a cluster, of which all run at once.
  void add_splits(const Tiling& whole) {
    if (whole.instance.shares_pixels || whole.instance.positions() != kSplitInstance.positions()) return;
    const Instance& instance = parts_of(problem_) > 1 ? kSplitPartsInstance : kSplitInstance;
    // The multiprocessors of a GPC are no multiple of eight: clusters of blocks that have a multiprocessor
    // for themselves leave some out.
    const int most = device_.multiprocessors * (instance.blocks > 1 ? 8 : 7) / 8;
    for (int splits = 2; splits <= std::min<int64_t>(kMaxSplits, k_chunks(problem_, whole)); splits *= 2) {
      if (whole.work_tiles * splits > most) return;
      Tiling tiling = whole;
      tiling.instance = instance;
      tiling.splits = splits;
      if (!lay_out(tiling)) continue;  // more splits need fewer stages
      tiling.cost = kernel_cost(problem_, device_, tiling);
      found_.push_back(std::move(tiling));
    }
  }

  // Adds the tiling with two blocks on a multiprocessor for a short main loop.
  void add_pairs(const Tiling& single, int64_t positions) {
    if (single.work_tiles <= device_.multiprocessors || weight_units(problem_, single) > kShortUnits) return;
    const std::optional<Instance> instance = instance_for(single.instance.shares_pixels, 2, positions);
    // Smaller tiles, and those with many positions that are no outputs, take longer.
    if (!instance || 4 * single.outputs() < 3 * instance->positions()) return;
    Tiling tiling = single;
    tiling.instance = *instance;
    if (!lay_out(tiling)) return;
    tiling.cost = kernel_cost(problem_, device_, tiling);
    found_.push_back(std::move(tiling));
  }

  // Lays out shared memory with as many stages as fit.
  bool lay_out(Tiling& tiling) const {
    const bool splits_k = tiling.splits > 1;
    const int64_t chunks = chunks_of_block(problem_, tiling);
    const int64_t units = chunks * problem_.filter[1] * problem_.filter[2];
    const auto fits = [&](int64_t pixel_stages, int64_t weight_stages) {
      // Two blocks share a multiprocessor. Clusters do not need that to run, but start early only beside a
      // block of the kernel before.
      const int most =
          tiling.instance.blocks > 1
              ? device_.shared_memory_per_multiprocessor / tiling.instance.blocks - kReservedSharedBytes
              : device_.shared_memory_per_block;
      SharedLayout block(kSwizzleBytes, most);
      SharedOffsets& shared = tiling.shared;
      shared.pixels = block.place<unsigned char>(pixel_stages * tiling.pixel_stage_bytes());
      shared.weights = block.place<unsigned char>(weight_stages * tiling.weight_stage_bytes());
      const int warpgroups = splits_k ? 1 : kConsumerWarpgroups;  // that have work tiles
      shared.results = block.place<unsigned char>(
          tiling.stages_in_place ? 0 : warpgroups * tiling.staged_tiles * tiling.staged_bytes());
      const int tiles = tiling.instance.accumulator_tiles;
      shared.partial_sums = block.place<unsigned char>((tiles - tiles / tiling.splits) * kPartialSumBytes);
      shared.discard = block.place<unsigned char>(kRowBytes);
      shared.result_rows = block.place<short>(tiling.instance.positions());
      shared.range_pairs =
          block.place<short>(problem_.is_quantised() ? kConsumerWarpgroups * tiling.instance.positions() : 0);
      shared.code_table = block.place<unsigned char>(problem_.is_quantised() ? kCodeCount : 0);
      shared.state = block.place<BlockState>(1);
      if (block.end() > most) return false;
      // The last columns of a wgmma read beyond the last stage, but not beyond the block's memory.
      tiling.pixel_stages = static_cast<int>(pixel_stages);
      tiling.weight_stages = static_cast<int>(weight_stages);
      tiling.shared_bytes = block.end();
      return true;
    };
    const int64_t outputs = tiling.outputs(), loaded = tiling.images * tiling.image_positions();
    tiling.result_chunks = tiling.staged_chunks =
        static_cast<int>(kWgmmaM * bytes_per_element(problem_.type) / tiling.result_row_bytes);
    const int64_t max_pixels = std::min<int64_t>(kMaxPixelStages, splits_k ? chunks : chunks + 2);
    const int64_t max_weights = splits_k ? std::min<int64_t>(units, kMaxWeightStages) : 8;
    const bool has_one_block = !splits_k && problem_.group * tiling.filter_blocks == 1;
    const bool could_keep = has_one_block && units <= kMaxWeightStages;
    // Two staged tiles hide the load of the residual where the main loop is too short for that, if they leave
    // room for three stages of pixels and for weights that stay.
    tiling.stages_in_place = !tiling.instance.shares_pixels && !splits_k && !problem_.epilogue.has_residual;
    tiling.staged_tiles =
        problem_.epilogue.has_residual && !splits_k && units <= kShortUnits ? kMaxStagedTiles : 1;
    if (!fits(std::min<int64_t>(max_pixels, kMinPixelStages + 1), could_keep ? units : kMinWeightStages)) {
      tiling.staged_tiles = 1;
    }
    // Result chunks take turns if pixels in front of the padding have no room for all, or if memory for all
    // left no room for a third stage of pixels. The residual comes for all at once.
    const int64_t others_bytes = (tiling.result_chunks - 1) * tiling.result_chunk_bytes();
    const bool has_room = tiling.stages_in_place
                              ? others_bytes + outputs * tiling.result_row_bytes <= loaded * kRowBytes
                              : fits(kMinPixelStages + 1, kMinWeightStages);
    if (!has_room && !problem_.epilogue.has_residual && !splits_k) tiling.staged_chunks = 1;
    tiling.keeps_weights = could_keep && fits(kMinPixelStages, units);
    int64_t pixels = std::min<int64_t>(max_pixels, kMinPixelStages);
    int64_t weights = tiling.keeps_weights ? units
                      : splits_k           ? std::min<int64_t>(units, kMinWeightStages)
                                           : kMinWeightStages;
    if (!fits(pixels, weights)) {
      // A stage is released during the next K chunk, so a single one serves a single K chunk.
      if (tiling.keeps_weights || chunks > 1 || pixels == 1 || !fits(--pixels, weights)) return false;
    }
    for (bool grows = true; grows;) {
      grows = pixels < max_pixels && fits(pixels + 1, weights);
      if (grows) ++pixels;
      if (!tiling.keeps_weights && weights < max_weights && fits(pixels, weights + 1))
        ++weights, grows = true;
    }
    return fits(pixels, weights);
  }

  const ConvProblem& problem_;
  const Device& device_;
  AxisTaps rows_, columns_;
  int64_t max_positions_;
  std::vector<Tiling> found_;
};

}  // namespace

int64_t k_chunks(const ConvProblem& problem, const Tiling& tiling) {
  return problem.filter[0] * tiling.channel_chunks;
}

int64_t chunks_of_block(const ConvProblem& problem, const Tiling& tiling) {
  return ceil_divide(k_chunks(problem, tiling), int64_t{tiling.splits});
}

int row_wgmmas(const ConvProblem& problem) {
  const int64_t bytes = problem.channels_per_group() * bytes_per_element(problem.type);
  return bytes <= kRowBytes / 4 ? 1 : bytes <= kRowBytes / 2 ? 2 : 4;
}

int64_t weight_units(const ConvProblem& problem, const Tiling& tiling) {
  return k_chunks(problem, tiling) * problem.filter[1] * problem.filter[2];
}

int64_t stride_phases(const ConvProblem& problem) {
  return static_cast<int64_t>(taps_of(problem, 1).phases.size() * taps_of(problem, 2).phases.size());
}

std::optional<TapRanges> tap_ranges(const ConvProblem& problem, int axis) {
  const int64_t taps = problem.filter[axis], outputs = problem.output[axis];
  const int64_t first_inside = std::min(outputs, ceil_divide(problem.pad_begin[axis], problem.stride[axis]));
  const int64_t from_end = ceil_divide(problem.pad_end[axis], problem.stride[axis]);
  const int64_t end_inside = std::max(first_inside, outputs - from_end);
  if (first_inside + outputs - end_inside > kMaxBorderOutputs) return std::nullopt;
  TapRanges all{
      1, static_cast<int>(first_inside), static_cast<int>(end_inside), static_cast<int>(outputs), {}, {}};
  all.ranges[0] = {0, static_cast<unsigned char>(taps)};
  int borders = 0;
  const auto add = [&](int64_t output) {
    const int64_t begin = output * problem.stride[axis] - problem.pad_begin[axis];
    TapRange range = all.ranges[0];
    while (range.first < taps && begin + range.first * problem.dilation[axis] < 0) ++range.first;
    while (range.end > range.first &&
           begin + (range.end - 1) * problem.dilation[axis] >= problem.input[axis]) {
      --range.end;
    }
    const int number = static_cast<int>(std::find(all.ranges, all.ranges + all.count, range) - all.ranges);
    if (number == kMaxTapRanges) return false;
    if (number == all.count) all.ranges[all.count++] = range;
    all.at_border[borders++] = static_cast<unsigned char>(number);
    return true;
  };
  for (int64_t output = 0; output < first_inside; ++output) {
    if (!add(output)) return std::nullopt;
  }
  for (int64_t output = end_inside; output < outputs; ++output) {
    if (!add(output)) return std::nullopt;
  }
  return all;
}

double cost_of(const ConvProblem& problem, const Device& device, const Tiling& tiling) {
  const Derived derived = derived_of(problem);
  return kernel_cost(derived.problem, device, tiling) + windows_cost(problem, derived, device);
}

std::vector<Tiling> cheapest_tilings(const ConvProblem& problem, const Device& device) {
  const Derived derived = derived_of(problem);
  std::vector<Tiling> tilings = Search(derived.problem, device).run();
  for (Tiling& tiling : tilings) tiling.cost += windows_cost(problem, derived, device);
  return tilings;
}

}  // namespace convswap::channels_last
