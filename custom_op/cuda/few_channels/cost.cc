// Chooses the tiling of few_channels with the lowest estimated time among hundreds of candidates, without
// measuring, once per shape.

#include <algorithm>
#include <cmath>
#include <iterator>
#include <optional>

#include "conv/arithmetic.h"
#include "cuda/costs/cost_table.h"
#include "cuda/few_channels/arguments.h"
#include "cuda/few_channels/family.h"
#include "cuda/host/candidates.h"
#include "cuda/host/estimate.h"
#include "cuda/host/formats.h"
#include "cuda/host/limits.h"
#include "cuda/host/shared_layout.h"

namespace convswap::few_channels {
namespace {

constexpr int kMaxQuads = 1 << 14;

int kernel_taps(int64_t taps) {
  return *std::find_if(std::begin(kKernelTaps), std::end(kKernelTaps),
                       [&](int limit) { return limit >= taps; });
}

constexpr int kSchedulers = 4;  // of a multiprocessor
constexpr int kWarpCounts[] = {4, 8, 12, 16};

// Bytes of a sector and of a line of the L2 cache.
constexpr int kSectorBytes = 32, kLineBytes = 128;

// Issue slots of the tensor core for a multiplication of 16 pixels and 8 filters (Nsight Compute, H200).
double multiplication_slots(int bundle) { return bundle == 4 ? 6 : 4; }

// ceil_divide for numbers below 2^31, which need no 64-bit division.
uint32_t ceil_divide_32(int64_t a, int64_t b) {
  return (static_cast<uint32_t>(a) + static_cast<uint32_t>(b) - 1) / static_cast<uint32_t>(b);
}

double squared(double value) { return value * value; }

// Computes the costs of a problem's tilings.
class Formula {
 public:
  // `problem` has the channels of one pass, and `bundles` are those of the folded problem. `accumulates`: the
  // pass adds to the results of earlier passes. `activates`: the pass is the last.
  Formula(const ConvProblem& problem, const FilterBundles& bundles, int folds, const Device& device,
          bool accumulates, bool activates)
      : costs_(costs_of(device).few_channels),
        multiprocessors_(device.multiprocessors),
        shared_memory_(device.shared_memory_per_multiprocessor),
        is_nhwc_(is_nhwc(problem)),
        size_(to_double(bytes_per_element(problem.type))),
        group_(problem.group),
        channels_(problem.channels_per_group()),
        channel_blocks_(bundles.channel_blocks),
        bundle_(bundles.size),
        filters_(to_double(problem.filters_per_group())),
        folded_filters_(problem.filters_per_group() * folds),
        quads_per_row_(quads_per_output_row(problem)),
        parts_(parts_of(problem)),
        steps_(to_double(bundles.steps() * terms_of(problem))) {
    for (int tiles = 1; tiles <= kMaxAccumulatorTiles; ++tiles) {
      const int width = store_width(problem, tiles);
      store_[tiles] = costs_.store * std::sqrt(to_double(kQuad) / width);
      addition_[tiles] = accumulates ? costs_.addition * kResultsOfLane / width : 0;
    }
    if (problem.type == ElementType::float32) conversion_ = costs_.conversion;
    if (activates)
      activation_ = kResultsOfLane * costs_.cycle * activation_cycles(problem.epilogue, costs_of(device));
    const double input = size_ * to_double(problem.batch * problem.in_channels * problem.input_size());
    output_ = size_ * to_double(problem.batch * problem.out_channels) * to_double(problem.output_size()) /
              costs_.memory;
    transfer_ = input / costs_.memory + (accumulates ? 2 : 1) * output_;
    const auto shares_sectors = [&](int64_t elements) {
      return elements * bytes_per_element(problem.type) % kSectorBytes != 0;
    };
    rows_share_sectors_ = shares_sectors(is_nhwc_ ? problem.out_channels : problem.output[2]);
    planes_share_sectors_ = !is_nhwc_ && problem.output[2] % kQuad == 0
                                ? shares_sectors(problem.output_size())
                                : rows_share_sectors_;
  }

  // The work on the multiprocessors and the transfers of memory overlap.
  double operator()(const Tiling& tiling) const {
    const int64_t tiles = tiling.tile_count;
    const int64_t rows = group_ * tiling.blocks_per_group;
    const int64_t resident = std::clamp<int64_t>(shared_memory_ / (tiling.shared_bytes + kReservedBytes), 1,
                                                 kMaxThreads / 32 / tiling.warps);
    const int64_t slots = multiprocessors_ * resident;
    const int64_t columns = grid_columns(tiles, rows, slots);
    const int64_t grid = rows * columns;
    const double waves = ceil_divide_32(grid, slots);
    const double tiles_per_block = ceil_divide_32(tiles, columns);
    // Blocks that share a multiprocessor.
    const int64_t blocks = std::min<int64_t>(resident, ceil_divide_32(grid, multiprocessors_));

    const int64_t quads = int64_t{tiling.images} * tiling.rows * tiling.quads;
    const int64_t filters = int64_t{tiling.filter_blocks} * tiling.accumulator_tiles * kMmaN;
    const double tile_output = 2 * kQuad * size_ * to_double(quads * std::min(filters, folded_filters_));
    const Work work = tile_work(tiling, blocks, quads);
    // The first input and the last output of a block do not overlap with its work.
    const double ends = (4 * to_double(tiling.raw_words) + tile_output) *
                        to_double(std::min(blocks * multiprocessors_, grid)) / costs_.cache;
    const double working = waves * (tiles_per_block * work.tile + work.first + ends);

    // Stores of neighbouring units and tiles share sectors and lines. If many planes and bytes are written in
    // turns, the parts of a sector reach memory one by one, and each output costs three accesses. A block
    // writes runs of a row's columns, or of a pixel's filters if y is NHWC.
    const bool is_whole = is_nhwc_ ? tiling.blocks_per_group == 1 : tiling.quads == quads_per_row_;
    const double run = size_ * (is_nhwc_ ? to_double(filters) : tiling.quads * kQuad);
    const double shared =
        (is_whole ? planes_share_sectors_ : rows_share_sectors_) + (is_whole ? 0 : kLineBytes / run);
    const double turns = filters_ * std::sqrt(tile_output * to_double(blocks) / 1024);
    const double memory = transfer_ + 2 * output_ * shared * turns / (turns + costs_.turns);
    return costs_.launch + std::sqrt(std::sqrt(squared(squared(working)) + squared(squared(memory))));
  }

 private:
  static constexpr int kReservedBytes = 1024;       // of shared memory, by the driver for each block
  static constexpr int kResultsOfLane = 2 * kMmaN;  // of an accumulator tile and a unit
  static_assert(kResultsOfLane * 32 == kMmaN * 2 * kQuadsPerUnit * kQuad);

  // Nanoseconds of a block for each tile, and for the first one beyond that.
  struct Work {
    double tile, first;
  };

  // Blocks of a multiprocessor share its issue slots and shared memory. Latencies overlap among them.
  Work tile_work(const Tiling& tiling, int64_t blocks, int64_t quads) const {
    const int threads = 32 * tiling.warps;
    const double together = to_double(blocks);
    const int64_t lines = tiling.images * channel_blocks_ * tiling.lines;
    const double preparing =
        costs_.weights * (1 + conversion_) * ceil_divide_32(tiling.shared.staged.bytes / 4, threads) +
        together * costs_.line * to_double(lines);

    const int64_t runs = tiling.tile_images() * channels_ * tiling.runs_per_plane;
    const double warp_runs = ceil_divide_32(std::max<int64_t>(runs, tiling.warps), tiling.warps);
    const double copying =
        together * (costs_.copy * to_double(tiling.raw_words) / 256 + costs_.run * tiling.warps * warp_runs) +
        costs_.run_latency * warp_runs;
    const double staging = costs_.staging * (1 + conversion_ * parts_) *
                           ceil_divide_32(ceil_divide_32(lines * bundle_, 8) * tiling.columns, threads);

    const int64_t units = int64_t{ceil_divide_32(quads, kQuadsPerUnit)} * tiling.filter_blocks;
    const double loads =
        steps_ * (bundle_ * (tiling.taps + kQuad - 1) / 4.0 + tiling.taps * tiling.accumulator_tiles);
    // Padding filters are multiplied and activated, but not stored.
    const double all = 1.0 * tiling.blocks_per_group * tiling.filter_blocks * tiling.accumulator_tiles;
    const double stored = std::min(1.0, ceil_divide_32(folded_filters_, kMmaN) / all);
    const double unit = costs_.load * loads +
                        (store_[tiling.accumulator_tiles] * stored + activation_) * tiling.accumulator_tiles;
    const double multiplying =
        unit * ceil_divide_32(blocks * units, kSchedulers) +
        (costs_.step * steps_ + addition_[tiling.accumulator_tiles] * tiling.accumulator_tiles) *
            ceil_divide_32(units, tiling.warps);
    return {costs_.tile + copying + staging + multiplying, preparing};
  }

  const decltype(Costs::few_channels)& costs_;
  const int64_t multiprocessors_, shared_memory_;
  const bool is_nhwc_;
  const double size_;  // bytes of an element
  const int64_t group_, channels_, channel_blocks_, bundle_;
  const double filters_;
  const int64_t folded_filters_, quads_per_row_;
  const int parts_;
  const double steps_;
  double conversion_ = 0;
  double activation_ = 0;  // nanoseconds of a unit's accumulator tile
  // The same by the accumulator tiles of the kernel instance.
  double store_[kMaxAccumulatorTiles + 1] = {}, addition_[kMaxAccumulatorTiles + 1] = {};
  double output_, transfer_;  // nanoseconds of memory
  bool rows_share_sectors_, planes_share_sectors_;
};

class Tiler {
 public:
  // Tiles the problem with `folds` folds.
  Tiler(const ConvProblem& problem, int folds, const Device& device)
      : problem_(folded_problem(problem, folds)),
        folds_evenly_(problem.output[1] % folds == 0),
        folds_(folds),
        device_(device),
        bundles_(problem_),
        quads_per_row_(quads_per_output_row(problem)),
        formula_(problem, bundles_, folds, device, false, true) {}

  // Finds the tilings that fit.
  void search(Candidates<Tiling>& found) const {
    Tiling tiling;
    tiling.folds = folds_;
    tiling.taps = kernel_taps(bundles_.taps);
    for (tiling.accumulator_tiles = 1; tiling.accumulator_tiles <= kMaxAccumulatorTiles;
         ++tiling.accumulator_tiles) {
      if (!has_instances(tiling.taps, tiling.accumulator_tiles, is_nhwc(problem_))) continue;
      const int64_t blocks = ceil_divide(problem_.filters_per_group(), kMmaN * tiling.accumulator_tiles);
      for (int64_t splits = 1; splits < blocks; splits *= 2) try_quads(tiling, blocks, splits, found);
      try_quads(tiling, blocks, blocks, found);
    }
  }

 private:
  void try_quads(Tiling tiling, int64_t blocks, int64_t splits, Candidates<Tiling>& found) const {
    tiling.filter_blocks = static_cast<int>(ceil_divide(blocks, splits));
    tiling.blocks_per_group = static_cast<int>(ceil_divide(blocks, tiling.filter_blocks));
    if (problem_.group * tiling.blocks_per_group > kMaxGridRows) return;
    for (int64_t column_tiles = 1; column_tiles <= quads_per_row_; column_tiles *= 2) {
      tiling.quads = static_cast<int>(ceil_divide(quads_per_row_, column_tiles));
      if (tiling.quads > kMaxQuads) continue;
      tiling.halves_images = false;
      try_rows(tiling, ceil_divide(problem_.output[1], 2), found);
      // The offset between the halves, in elements, has 32 bits.
      if (problem_.batch == 1 || problem_.out_channels * problem_.output_size() > kMaxIndex) continue;
      tiling.halves_images = true;
      try_rows(tiling, problem_.output[1], found);
    }
  }

  void try_rows(Tiling tiling, int64_t all, Candidates<Tiling>& found) const {
    const int64_t limit = std::min<int64_t>(all, kMaxQuads / tiling.quads);
    std::size_t warp_counts = std::size(kWarpCounts);
    for (int64_t rows = 1; rows <= limit; rows = next_rows(rows, all)) {
      // Offsets in y within a tile have 32 bits. Those of NCHW lie within a plane.
      if (is_nhwc(problem_) && 2 * rows * problem_.output[2] * problem_.out_channels > kMaxIndex) return;
      tiling.rows = static_cast<int>(rows);
      tiling.images = 1;
      if (!set_sizes(tiling)) return;
      warp_counts = try_warps(tiling, warp_counts, found);
      if (warp_counts == 0) return;
      if (tiling.halves_images && rows == all) try_images(tiling, warp_counts, found);
    }
  }

  // Tries the first `count` of kWarpCounts. Returns how many of them fit into shared memory.
  std::size_t try_warps(Tiling tiling, std::size_t count, Candidates<Tiling>& found) const {
    const int64_t without_results = tiling.shared_bytes;
    for (std::size_t i = 0; i < count; ++i) {
      tiling.warps = kWarpCounts[i];
      tiling.shared_bytes = without_results;
      if (!is_nhwc(problem_))
        tiling.shared_bytes += tiling.warps * kResultWordsPerWarp * int64_t{sizeof(float)};
      if (tiling.shared_bytes > device_.shared_memory_per_block) return i;
      tiling.cost = formula_(tiling);
      found.add(tiling);
    }
    return count;
  }

  // Returns the fewest rows with which there are fewer tiles along the rows; if they are many, at least a
  // ninth fewer.
  static int64_t next_rows(int64_t rows, int64_t all) {
    const int64_t row_tiles = ceil_divide(all, rows);
    return row_tiles == 1 ? all + 1 : ceil_divide(all, std::min(row_tiles - 1, row_tiles * 8 / 9));
  }

  void try_images(Tiling tiling, std::size_t warp_counts, Candidates<Tiling>& found) const {
    // Only the last image of a half may end with a folded row that crosses the image's edge.
    if (tiling.quads != quads_per_row_ || !folds_evenly_) return;
    const int64_t image_elements = problem_.out_channels * problem_.output_size();
    const int64_t limit =
        std::min<int64_t>({16, ceil_divide(problem_.batch, 2), kMaxIndex / 2 / image_elements});
    for (int images = 2; images <= limit; ++images) {
      tiling.images = images;
      if (images * tiling.rows * tiling.quads > kMaxQuads || !set_sizes(tiling)) return;
      warp_counts = try_warps(tiling, warp_counts, found);
      if (warp_counts == 0) return;
    }
  }

  int64_t tiles_of(const Tiling& tiling) const {
    return ceil_divide(problem_.batch, tiling.tile_images()) *
           ceil_divide(problem_.output[1], tiling.tile_rows()) * ceil_divide(quads_per_row_, tiling.quads);
  }

  // Sets all but the number of warps and the cost. The shared memory does not include the staging buffers for
  // stores, which lie at its end. Returns false if the tile does not fit.
  bool set_sizes(Tiling& tiling) const {
    const auto rows_for = [&](int64_t output_rows, int64_t filter_rows) {
      return (output_rows - 1) * problem_.stride[1] + (filter_rows - 1) * problem_.dilation[1] + 1;
    };
    const int64_t raw_rows = rows_for(tiling.tile_rows(), problem_.filter[1]);
    const int64_t lines = rows_for(tiling.rows, bundles_.row_step) * bundles_.stride_phases;
    // A quad reads taps + 3 columns, even if the image ends within the quad.
    const int64_t beyond = std::max<int64_t>(tiling.taps - 1, bundles_.reach);
    const int64_t columns = tiling.quads * kQuad + beyond;
    const int64_t raw_columns = columns * problem_.stride[2];
    // Each of these takes at least as many words of shared memory. With larger ones, the products below might
    // not fit into 64 bits.
    const int64_t limit = device_.shared_memory_per_block;
    if (raw_rows > limit || columns > limit || lines > limit || bundles_.count > limit) return false;
    tiling.tile_count = tiles_of(tiling);
    if (raw_columns > kMaxIndex || tiling.tile_count > kMaxIndex) return false;

    tiling.raw_rows = static_cast<int>(raw_rows);
    tiling.raw_columns = static_cast<int>(raw_columns);
    tiling.lines = static_cast<int>(lines);
    tiling.columns = static_cast<int>(columns);
    // An odd number of 16-byte units, so that the lines that a quarter-warp reads lie in different banks.
    tiling.line_words = static_cast<int>(ceil_divide(columns * bundles_.size, 4) | 1) * 4;
    // A run may start anywhere within its first 16 bytes.
    const int64_t cp_async_elements = 16 / bytes_per_element(problem_.type);
    const bool is_whole = tiling.quads == quads_per_row_;
    const int64_t width = std::min(raw_columns, problem_.input[2]);
    const int64_t run =
        is_whole ? (std::min(raw_rows, problem_.input[1]) - 1) * problem_.input[2] + width : width;
    if (run > limit) return false;
    tiling.runs_per_plane = static_cast<int>(is_whole ? 1 : raw_rows);
    tiling.run_elements =
        static_cast<int>(ceil_divide(run + cp_async_elements - 1, cp_async_elements) * cp_async_elements);
    tiling.zero_words = static_cast<int>(ceil_divide(width, cp_async_elements) * 4);
    // The first line of a channel block lies in the banks after the line of the previous block's last bundle.
    const int64_t wanted = bundles_.row_step * bundles_.stride_phases * tiling.line_words % 32;
    tiling.channel_block_words = lines * tiling.line_words;
    tiling.channel_block_words += (wanted - tiling.channel_block_words % 32 + 32) % 32;
    const int64_t runs = tiling.tile_images() * problem_.channels_per_group() * tiling.runs_per_plane;
    if (runs > limit) return false;
    tiling.raw_words = runs * tiling.run_elements / cp_async_elements * 4;

    const int64_t filters = int64_t{tiling.filter_blocks} * tiling.accumulator_tiles * kMmaN;
    const int64_t weight_words =
        filters * parts_of(problem_) * bundles_.steps() * tiling.taps * 2 * bundles_.size;
    const int64_t staged_words = tiling.images * bundles_.channel_blocks * tiling.channel_block_words;
    const int64_t quads = int64_t{tiling.images} * tiling.rows * tiling.quads;
    if (staged_words >= 1 << 16) return false;
    tiling.part_words = staged_words;
    SharedOffsets& shared = tiling.shared;
    SharedLayout block(16, limit);
    block.place<unsigned>(weight_words);
    shared.staged = block.place<unsigned>(parts_of(problem_) * staged_words);
    shared.raw = block.place<unsigned char>(4 * (tiling.raw_words + tiling.zero_words));
    shared.lines = block.place<unsigned>(tiling.images * bundles_.channel_blocks * lines *
                                         staged_line_words(bundles_.size));
    shared.scales = block.place<FilterScale>(filters);
    shared.quad_offsets = block.place<QuadOffsets>(quads);
    shared.bundles = block.place<FilterBundle>(bundles_.steps() * kBundlesPerStep);
    shared.tops = block.place<int>(filters);
    shared.second_factors = block.place<float>(filters);
    shared.state = block.place<BlockState>(1);
    shared.results = block.place<float>(0);
    tiling.shared_bytes = block.end();
    return tiling.shared_bytes <= device_.shared_memory_per_block;
  }

  const ConvProblem problem_;
  const bool folds_evenly_;
  const int folds_;
  const Device& device_;
  const FilterBundles bundles_;
  const int64_t quads_per_row_;
  const Formula formula_;
};

}  // namespace

double cost_of(const ConvProblem& problem, const Device& device, const Pass& pass) {
  const ConvProblem own = problem_with_channels(problem, pass.channels);
  const FilterBundles bundles(folded_problem(own, pass.tiling.folds));
  const bool is_last = pass.first_channel + pass.channels == problem.channels_per_group();
  return Formula(own, bundles, pass.tiling.folds, device, pass.first_channel > 0, is_last)(pass.tiling);
}

FilterBundles::FilterBundles(const ConvProblem& problem) {
  const int64_t width = problem.filter[2];
  const int64_t stride = problem.stride[2];
  const int64_t last = (width - 1) * problem.dilation[2];
  const bool single_taps = problem.dilation[2] != 1;
  stride_phases = std::min(stride, last + 1);
  taps = single_taps ? 1 : ceil_divide(width, stride);
  reach = last / stride;

  // Chooses the bundles that cost the tensor core least, and among equals those that stage a row least often.
  const int64_t per_line = single_taps ? width : stride_phases;
  double fewest_slots = std::numeric_limits<double>::infinity();
  for (const int bundle : {4, 2}) {
    for (int64_t bundle_channels = bundle; bundle_channels >= 1; bundle_channels /= 2) {
      const int64_t step = ceil_divide(problem.filter[1], bundle / bundle_channels);
      const int64_t bundle_channel_blocks = ceil_divide(problem.channels_per_group(), bundle_channels);
      const int64_t bundles = bundle_channel_blocks * step * per_line;
      const double slots = ceil_divide(bundles, kBundlesPerStep) * multiplication_slots(bundle);
      if (slots >= fewest_slots) continue;
      fewest_slots = slots;
      size = bundle;
      channels = bundle_channels;
      row_step = step;
      channel_blocks = bundle_channel_blocks;
      count = bundles;
    }
  }
}

int64_t FilterBundles::steps() const { return ceil_divide(count, kBundlesPerStep); }

bool loses_accuracy(const ConvProblem& problem, int folds, const Device& device) {
  const FilterBundles bundles(folded_problem(problem, folds));
  return parts_of(problem) > 1 && bundles.steps() * bundles.taps > max_ieee_products(device);
}

int64_t quads_per_output_row(const ConvProblem& problem) { return ceil_divide(problem.output[2], kQuad); }

int64_t grid_columns(int64_t tiles, int64_t rows, int64_t slots) {
  // Rounded down, every block is resident; rounded up, fewer slots stay empty but some blocks wait.
  const int64_t up = ceil_divide_32(slots, rows);
  const int64_t down = std::max<int64_t>(1, up * rows == slots ? up : up - 1);
  const auto rounds = [&](int64_t columns) {
    return int64_t{ceil_divide_32(rows * columns, slots)} * ceil_divide_32(tiles, columns);
  };
  const int64_t columns = up != down && rounds(up) < rounds(down) ? up : down;
  // Every block takes the same number of tiles, to within one.
  return ceil_divide_32(tiles, ceil_divide_32(tiles, columns));
}

int store_width(const ConvProblem& problem, int accumulator_tiles) {
  if (is_nhwc(problem)) {
    const int vector = nhwc_vector(accumulator_tiles, static_cast<int>(bytes_per_element(problem.type)));
    return problem.filters_per_group() % vector == 0 ? vector : 1;
  }
  return problem.output[2] % 4 == 0 ? 4 : problem.output[2] % 2 == 0 ? 2 : 1;
}

namespace {

void search(const ConvProblem& problem, const Device& device, Candidates<Tiling>& found) {
  for (const int folds : {1, 2, 4, 8}) {
    // The shifted rows of a dilated filter would lie between its unshifted rows.
    if (folds > 1 && (problem.dilation[1] != 1 || folds > problem.output[1] ||
                      problem.filters_per_group() * folds > kMmaN)) {
      break;
    }
    if (loses_accuracy(problem, folds, device)) continue;
    Tiler(problem, folds, device).search(found);
  }
}

}  // namespace

std::vector<Pass> passes_of(const ConvProblem& problem, const Device& device) {
  const int64_t all = problem.channels_per_group();
  // As few passes as possible: each reads and writes the output again.
  for (int64_t count = 1; count <= all; ++count) {
    const int64_t channels = ceil_divide(all, count);
    if (count > 1 && channels == ceil_divide(all, count - 1)) continue;
    std::vector<Pass> passes;
    for (int64_t first = 0; first < all; first += channels) {
      // Fewer channels in the last pass may be bundled another way, which may take more memory.
      const int64_t pass_channels = std::min(channels, all - first);
      const bool is_repeated = !passes.empty() && pass_channels == channels;
      const std::optional<Tiling> tiling =
          is_repeated ? passes.front().tiling
                      : best_of<search>(problem_with_channels(problem, pass_channels), device);
      if (!tiling) break;
      passes.push_back({first, pass_channels, *tiling});
      if (first + pass_channels == all) return passes;
    }
  }
  return {};
}

std::vector<Tiling> cheapest_tilings(const ConvProblem& problem, const Device& device) {
  return all_of<search>(problem, device);
}

ConvProblem folded_problem(ConvProblem problem, int folds) {
  problem.filter[1] += (folds - 1) * problem.stride[1];
  problem.stride[1] *= folds;
  problem.output[1] = ceil_divide(problem.output[1], folds);
  problem.out_channels *= folds;
  return problem;
}

ConvProblem problem_with_channels(ConvProblem problem, int64_t channels) {
  problem.in_channels = channels * problem.group;
  return problem;
}

}  // namespace convswap::few_channels
