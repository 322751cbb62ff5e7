// Chooses the tiling of few_channels with the lowest estimated time among hundreds of candidates, without
// measuring. The search takes tens of microseconds, for very large images up to a millisecond, once per
// shape.

#include <algorithm>
#include <cmath>
#include <iterator>
#include <optional>
#include <utility>

#include "conv/arithmetic.h"
#include "cuda/few_channels/arguments.h"
#include "cuda/few_channels/family.h"
#include "cuda/host/candidates.h"
#include "cuda/host/estimate.h"
#include "cuda/host/formats.h"
#include "cuda/host/launch.h"
#include "cuda/host/limits.h"
#include "cuda/host/shared_layout.h"

namespace convswap::few_channels {
namespace {

constexpr int kMaxQuads = 1 << 14;

// Limit of coordinates and tile indices, below which sums of two fit into the kernel's 32 bits.
constexpr int64_t kMaxIndex = 1 << 30;

int kernel_taps(int64_t taps) {
  return *std::find_if(std::begin(kKernelTaps), std::end(kKernelTaps),
                       [&](int limit) { return limit >= taps; });
}

constexpr int kTensorCores = 4;  // of a multiprocessor

// Issue slots of the tensor core for a multiplication of 16 pixels and 8 filters (Nsight Compute, H200).
double multiplication_slots(int bundle) { return bundle == 4 ? 6 : 4; }

// What several groups take of what the sum has for them, which was fitted to layers of one: the geometric
// mean of the suite small-groups (rule-small-groups in benchmarks/h200.json).
constexpr double kGroupedFactor = 0.93;

class Tiler {
 public:
  // Tiles the problem with `folds` folds.
  Tiler(const ConvProblem& problem, int folds, const Device& device)
      : problem_(folded_problem(problem, folds)),
        folds_evenly_(problem.output[1] % folds == 0),
        folds_(folds),
        device_(device),
        bundles_(problem_),
        quads_per_row_(quads_per_output_row(problem)) {}

  // Finds the tilings that fit.
  void search(Candidates<Tiling>& found) const {
    Tiling tiling;
    tiling.folds = folds_;
    tiling.taps = kernel_taps(bundles_.taps);
    for (tiling.accumulator_tiles = 1; tiling.accumulator_tiles <= max_accumulator_tiles(tiling.taps);
         ++tiling.accumulator_tiles) {
      const int64_t blocks = ceil_divide(problem_.filters_per_group(), kMmaN * tiling.accumulator_tiles);
      for (const int warps : {4, 8, 12, 16}) {
        tiling.warps = warps;
        for (int64_t splits = 1; splits < blocks; splits *= 2) try_quads(tiling, blocks, splits, found);
        try_quads(tiling, blocks, blocks, found);
      }
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
    for (int64_t rows = 1; rows <= limit; rows = next_rows(rows, all)) {
      tiling.rows = static_cast<int>(rows);
      tiling.images = 1;
      if (!set_sizes(tiling)) return;
      found.add(tiling);
      if (tiling.halves_images && rows == all) try_images(tiling, found);
    }
  }

  // Returns the fewest rows with which there are fewer tiles along the rows; if they are many, at least a
  // ninth fewer.
  static int64_t next_rows(int64_t rows, int64_t all) {
    const int64_t row_tiles = ceil_divide(all, rows);
    return row_tiles == 1 ? all + 1 : ceil_divide(all, std::min(row_tiles - 1, row_tiles * 8 / 9));
  }

  void try_images(Tiling tiling, Candidates<Tiling>& found) const {
    // Only the last image of a half may end with a folded row that crosses the image's edge.
    if (tiling.quads != quads_per_row_ || !folds_evenly_) return;
    const int64_t image_elements = problem_.out_channels * problem_.output_size();
    const int64_t limit =
        std::min<int64_t>({16, ceil_divide(problem_.batch, 2), kMaxIndex / 2 / image_elements});
    for (int images = 2; images <= limit; ++images) {
      tiling.images = images;
      if (images * tiling.rows * tiling.quads > kMaxQuads || !set_sizes(tiling)) return;
      found.add(tiling);
    }
  }

  int64_t tiles_of(const Tiling& tiling) const {
    return ceil_divide(problem_.batch, tiling.tile_images()) *
           ceil_divide(problem_.output[1], tiling.tile_rows()) * ceil_divide(quads_per_row_, tiling.quads);
  }

  // Sets the sizes and the cost. Returns false if the tile does not fit.
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
    shared.results = block.place<float>(int64_t{tiling.warps} * kResultWordsPerWarp);
    shared.lines = block.place<unsigned>(tiling.images * bundles_.channel_blocks * lines *
                                         staged_line_words(bundles_.size));
    shared.scales = block.place<FilterScale>(filters);
    shared.quad_offsets = block.place<QuadOffsets>(quads);
    shared.bundles = block.place<FilterBundle>(bundles_.steps() * kBundlesPerStep);
    shared.tops = block.place<int>(filters);
    shared.second_factors = block.place<float>(filters);
    shared.state = block.place<BlockState>(1);
    tiling.shared_bytes = block.end();
    if (tiling.shared_bytes > device_.shared_memory_per_block) return false;
    set_cost(tiling);
    return true;
  }

  // Sets the nanoseconds on an H200. Each part was counted for some 7,000 tilings of the course layers at
  // batches 1 to 10,000, and what one takes fitted to the times measured. A block's warps share the
  // multiprocessor with those of the blocks beside it, and wait for memory and for each other on their own.
  void set_cost(Tiling& tiling) const {
    const int64_t tiles = tiling.tile_count;
    const int64_t rows = problem_.group * tiling.blocks_per_group;
    const int64_t resident =
        std::clamp<int64_t>(device_.shared_memory_per_multiprocessor / (tiling.shared_bytes + 1024), 1,
                            kMaxThreads / 32 / tiling.warps);
    const int64_t slots = device_.multiprocessors * resident;
    const int64_t columns = grid_columns(tiles, rows, slots);
    const double waves = ceil_divide(rows * columns, slots);
    const double tiles_per_block = ceil_divide(tiles, columns);
    const double blocks_per_multiprocessor =
        std::min(resident, ceil_divide(rows * columns, device_.multiprocessors));

    const int64_t quads = int64_t{tiling.images} * tiling.rows * tiling.quads;
    const int64_t units = ceil_divide(quads, kQuadsPerUnit) * tiling.filter_blocks;
    const double rounds = ceil_divide(units, tiling.warps);
    const double steps = bundles_.steps() * terms_of(problem_);
    const double multiplications = steps * tiling.taps * tiling.accumulator_tiles * kQuad;
    const double loads =
        steps * (bundles_.size * (tiling.taps + 3) / 4.0 + tiling.taps * tiling.accumulator_tiles);
    const double lines = int64_t{tiling.images} * bundles_.channel_blocks * tiling.lines;
    const double staged = std::ceil(lines * bundles_.size / 8) * tiling.columns;
    const int64_t runs = tiling.tile_images() * problem_.channels_per_group() * tiling.runs_per_plane;
    const double runs_per_warp = ceil_divide(std::max<int64_t>(runs, tiling.warps), tiling.warps);
    const double weights = to_double(tiling.shared.staged.bytes) / 4;

    const int width = store_width(problem_);
    double store = width == 4 ? 34 : width == 2 ? 42 : 26;
    if (width < 4) {
      // The more of y the blocks of a multiprocessor write in turns, the slower they write it.
      const int64_t filters = int64_t{tiling.filter_blocks} * tiling.accumulator_tiles * kMmaN;
      const double bytes = 2.0 * quads * kQuad * std::min(filters, problem_.filters_per_group()) *
                           bytes_per_element(problem_.type) * blocks_per_multiprocessor;
      store += 13 * std::clamp((bytes / 1024 - 150) / 200, 0.0, 1.0);
    }
    // Tiles of eight filters of which none exists are multiplied, and stored for half.
    const double filter_tiles =
        1.0 * tiling.blocks_per_group * tiling.filter_blocks * tiling.accumulator_tiles;
    const double existing = to_double(ceil_divide(problem_.filters_per_group(), kMmaN));
    const double stored = 0.5 + 0.5 * existing / filter_tiles;
    const double slots_of_unit = multiplications * multiplication_slots(bundles_.size);
    const double unit_shared =
        0.038 * slots_of_unit + 0.33 * loads + store * stored * tiling.accumulator_tiles + 3.2;
    const double unit_alone = 0.47 * multiplications + 220 * steps + 11 * tiling.accumulator_tiles + 8;
    // Long sums are bound by the tensor cores, each of which takes whole units.
    const double computing = std::max(
        rounds * (blocks_per_multiprocessor * tiling.warps * unit_shared + unit_alone),
        0.17 * slots_of_unit * kTensorCores * std::ceil(blocks_per_multiprocessor * units / kTensorCores));
    const double shared = 0.13 * tiling.raw_words + 8.7 * runs_per_warp * tiling.warps;
    const double alone =
        130 * std::ceil(staged / (32 * tiling.warps)) + 220 * runs_per_warp + 800 + computing;
    const double first_shared = 0.22 * weights + 12.5 * lines;
    const double first_alone = 480 * std::ceil(weights / (32 * tiling.warps));
    const double tile = blocks_per_multiprocessor * shared + alone,
                 first = blocks_per_multiprocessor * first_shared + first_alone;
    tiling.cost = waves * (tiles_per_block * tile + first);

    // So that it can be compared with the other algorithms: what the sum takes beside that at batches of 1
    // and 64, and how far it is off from batch 64 on, on the course layers and others (few_channels.md in
    // benchmarks, at its end). Where channels are several, blocks of several tiles do not end together; in
    // float16 the sum is then too small where results are stored one by one, since it takes staging for half
    // of what it is in float32, and in float32 too large where they are not. Tilings are not chosen by that:
    // it would favour one huge tile. Of products of one term course layers of one channel take 0.3 us more
    // than the sum at batches 1 and 8, of three terms they do not.
    const double launch = terms_of(problem_) == 1 ? 4100 : 3800;
    const double several = problem_.channels_per_group() > 1 ? 1 - 1 / tiles_per_block : 0;
    const double off = problem_.type == ElementType::float32 ? 1.1 - (width > 1 ? 0.1 * several : 0)
                                                             : 0.95 + (width > 1 ? 0 : 0.26 * several);
    // Of many channels in a group the sum is too large, unless results are stored one by one
    // (few_channels.md in benchmarks, at its end).
    const int64_t channels = problem_.channels_per_group();
    const double many = width == 1 || channels <= 8 ? 1 : channels <= 32 ? 0.9 : 0.84;
    const double work = off * many * (tiling.cost + waves * several / 2 * tile);
    tiling.estimate = (launch - kEarlyStartNanoseconds + std::max(work, memory_nanoseconds(width))) *
                      (problem_.is_grouped() ? kGroupedFactor : 1);
  }

  // What memory takes on an H200. Results that are stored by fours fill its sectors; the shares of others
  // come one after the other, and where many planes are stored in turns so late that they cost memory as much
  // as several times the bytes (15 layers of 64 to 512 filters and 29 MB to 4 GB, on an H100 and an H200: 970
  // to 1,240 bytes a nanosecond of float32, 650 to 1,010 of 16 bits, on either card; those of 24 filters and
  // fewer reach 1,700 and more).
  double memory_nanoseconds(int store_width) const {
    const double size = to_double(bytes_per_element(problem_.type));
    const double x = size * to_double(problem_.batch * problem_.in_channels * problem_.input_size());
    const double y =
        size * to_double(problem_.batch * problem_.out_channels) * to_double(problem_.output_size());
    const bool are_late = store_width < kQuad && problem_.filters_per_group() > 32;
    return x / 3800 + y / (!are_late ? 3400 : size == 4 ? 1100 : 850);
  }

  const ConvProblem problem_;
  const bool folds_evenly_;
  const int folds_;
  const Device& device_;
  const FilterBundles bundles_;
  const int64_t quads_per_row_;
};

}  // namespace

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
  const int64_t down = std::max<int64_t>(1, slots / rows);
  const int64_t up = ceil_divide(slots, rows);
  const auto rounds = [&](int64_t columns) {
    return ceil_divide(rows * columns, slots) * ceil_divide(tiles, columns);
  };
  const int64_t columns = rounds(up) < rounds(down) ? up : down;
  // Every block takes the same number of tiles, to within one.
  return ceil_divide(tiles, ceil_divide(tiles, columns));
}

int store_width(const ConvProblem& problem) {
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

std::optional<Tiling> best_tiling(const ConvProblem& problem, const Device& device) {
  return best_of<Tiling>([&](auto& found) { search(problem, device, found); });
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
                      : best_tiling(problem_with_channels(problem, pass_channels), device);
      if (!tiling) break;
      passes.push_back({first, pass_channels, *tiling});
      if (first + pass_channels == all) return passes;
    }
  }
  return {};
}

std::vector<Tiling> cheapest_tilings(const ConvProblem& problem, const Device& device) {
  return all_of<Tiling>([&](auto& found) { search(problem, device, found); });
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
