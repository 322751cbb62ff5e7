// Chooses what a block of toeplitz does: the cheapest by estimate among some thousand candidates, without
// any measurement. It takes up to half a millisecond, once per shape.

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include "conv/arithmetic.h"
#include "conv/epilogue_math.h"
#include "cuda/host/estimate.h"
#include "cuda/host/formats.h"
#include "cuda/host/launch.h"
#include "cuda/host/limits.h"
#include "cuda/host/shared_layout.h"
#include "cuda/toeplitz/family.h"

namespace convswap::toeplitz {
namespace {

// Beyond, sums of coordinates and counts might leave the kernel's 32 bits.
constexpr int64_t kMaxIndex = 1 << 30;

class Tiler {
 public:
  Tiler(const ConvProblem& problem, const Device& device) : problem_(problem), device_(device) {}

  std::optional<Tiling> best() const {
    std::optional<Tiling> best;
    for (const CoreLayout& core_layout : core_layouts_of(problem_, device_)) {
      for (const int tiles : kKernelTiles) try_filters(core_layout, tiles, best);
    }
    return best;
  }

 private:
  void try_filters(const CoreLayout& core_layout, int tiles, std::optional<Tiling>& best) const {
    const int per_block = tiles * kTileColumns / (core_layout.outputs * core_layout.folds);
    if (per_block == 0) return;
    const int64_t filters = problem_.filters_per_group();
    Tiling tiling{.core_layout = core_layout, .tiles = tiles};
    tiling.filter_blocks = static_cast<int>(ceil_divide(filters, per_block));
    tiling.filters_per_block = static_cast<int>(ceil_divide(filters, tiling.filter_blocks));
    // Columns that stay empty only cost; another kernel has fewer.
    if (tiles > 2 &&
        2 * tiling.filters_per_block * core_layout.outputs * core_layout.folds <= tiles * kTileColumns)
      return;
    const int64_t all_cores = ceil_divide(problem_.output[2], core_layout.outputs);
    // Windows of a pool lie across columns: its tiles are as wide as the image.
    const bool pools = problem_.epilogue.pool.kind != PoolKind::none;
    for (int64_t columns = 1; columns <= (pools ? 1 : all_cores); columns *= 2) {
      tiling.cores = static_cast<int>(ceil_divide(all_cores, columns));
      if (!try_rows(tiling, columns == 1, best)) continue;
      return;  // narrower tiles are for what does not fit
    }
  }

  // Whether the lowest tile fits.
  bool try_rows(Tiling tiling, bool is_full_width, std::optional<Tiling>& best) const {
    const int64_t all = ceil_divide(problem_.output[1], tiling.core_layout.folds);
    bool fits_any = false;
    for (int64_t bands = 1; bands <= all; bands = bands < 16 ? bands + 1 : bands + bands / 4) {
      tiling.rows = static_cast<int>(ceil_divide(all, bands));
      tiling.images = 1;
      if (!set_bands(tiling)) continue;
      const bool fits = try_warpgroups(tiling, best);
      fits_any = fits_any || fits;
      if (!fits || !is_full_width) continue;
      if (bands > 1) {
        try_overlapping(tiling, bands, best);
        continue;
      }
      for (tiling.images = 2; tiling.images <= 8 && tiling.images <= problem_.batch; ++tiling.images) {
        if (!try_warpgroups(tiling, best)) break;
      }
    }
    return fits_any;
  }

  // The same where each tile but the last ends with a whole line of the cache, which takes rows of the next.
  void try_overlapping(Tiling tiling, int64_t bands, std::optional<Tiling>& best) const {
    const int64_t line = kCacheLine / size_of(problem_.type), width = problem_.output[2];
    if (stores_whole_lines(problem_, tiling) || !problem_.epilogue.is_empty()) return;
    tiling.overlap = ceil_divide(line - 1, width);
    const int64_t left = problem_.output[1] - tiling.overlap;
    if (left <= 0) return;
    tiling.rows =
        static_cast<int>(ceil_divide(ceil_divide(left, bands) + tiling.overlap, tiling.core_layout.folds));
    if (set_bands(tiling) && tiling.bands > 1) try_warpgroups(tiling, best);
  }

  // Whether one warpgroup fits.
  bool try_warpgroups(Tiling tiling, std::optional<Tiling>& best) const {
    tiling.copies_input = can_copy(tiling);
    if (tiling.copies_input) try_number_of_warpgroups(tiling, best);
    tiling.copies_input = false;
    return try_number_of_warpgroups(tiling, best);
  }

  bool try_number_of_warpgroups(Tiling tiling, std::optional<Tiling>& best) const {
    if (!measure(tiling)) return false;
    const TileCost tile_cost = cost_of_tile(tiling);
    for (tiling.warpgroups = 1; tiling.warpgroups <= max_warpgroups(tiling.tiles) && set_warpgroups(tiling);
         ++tiling.warpgroups) {
      tiling.cost = cost(tiling, tile_cost);
      if (!best || tiling.cost < best->cost) best = tiling;
    }
    return true;
  }

  // Copies bring whole rows, of tiles that lie inside the image. Where something follows they cost the kernel
  // more than they save.
  bool can_copy(const Tiling& tiling) const {
    return problem_.epilogue.is_empty() && is_unpadded(problem_, tiling.core_layout) &&
           int64_t{tiling.cores} * tiling.core_layout.outputs >= problem_.output[2];
  }

  // Sets which rows of y a tile gives; false where they are none.
  bool set_bands(Tiling& tiling) const {
    const Pool& pool = problem_.epilogue.pool;
    const int64_t rows = int64_t{tiling.rows} * tiling.core_layout.folds;
    tiling.y_rows = rows;
    tiling.row_advance = rows - tiling.overlap;
    if (pool.kind != PoolKind::none) {
      tiling.y_rows = rows >= problem_.output[1] + pool.pad_begin[0] ? problem_.result[1]
                      : rows >= pool.kernel[0] ? (rows - pool.kernel[0]) / pool.stride[0] + 1
                                               : 0;
      tiling.row_advance = tiling.y_rows * pool.stride[0];
    }
    if (tiling.y_rows == 0 || tiling.row_advance > kMaxIndex) return false;
    tiling.bands = ceil_divide(problem_.result[1] - tiling.overlap, tiling.y_rows - tiling.overlap);
    return true;
  }

  // Fills in the sizes but those that depend on how many warpgroups there are; false where not one fits.
  bool measure(Tiling& tiling) const {
    const CoreLayout& core_layout = tiling.core_layout;
    const int64_t limit = device_.shared_memory_per_block;
    const int64_t rows_beyond = (core_layout.window_rows - 1) / core_layout.row_phases;
    const int64_t cores_beyond = (core_layout.window_cores - 1) / core_layout.column_phases;
    tiling.pitch = tiling.cores + cores_beyond;
    tiling.core_rows = tiling.rows + rows_beyond;
    tiling.plane_cores = tiling.core_rows * tiling.pitch;
    if (tiling.pitch * 16 > limit || tiling.plane_cores * 16 > limit) return false;
    const int64_t planes = core_layout.bundles * core_layout.row_phases * core_layout.column_phases;
    if (planes * tiling.plane_cores * 16 > limit) return false;
    tiling.image_cores = planes * tiling.plane_cores;
    tiling.part_cores = tiling.images * tiling.image_cores;
    tiling.cores_per_row = tiling.pitch * core_layout.column_phases;
    tiling.input_rows = tiling.core_rows * core_layout.row_phases;
    tiling.image_items = core_layout.bundles * tiling.input_rows * tiling.cores_per_row;
    tiling.product_rows = (tiling.rows - 1) * tiling.pitch + tiling.cores;
    tiling.chunks = ceil_divide(tiling.product_rows, kWgmmaM);
    tiling.tile_count = ceil_divide(problem_.batch, tiling.images) * tiling.bands *
                        ceil_divide(ceil_divide(problem_.output[2], core_layout.outputs), tiling.cores);
    if (tiling.tile_count > kMaxIndex) return false;
    // The last multiplication reads rows beyond the image's, whose results nobody stores.
    const int64_t last_read = tiling.chunks * kWgmmaM + tiling.image_cores - tiling.plane_cores +
                              rows_beyond * tiling.pitch + cores_beyond + 2;
    const int64_t parts = parts_of(problem_);
    tiling.core_matrix_bytes =
        16 * (parts * tiling.part_cores - tiling.image_cores + std::max(tiling.image_cores, last_read));

    SharedOffsets& shared = tiling.shared;
    SharedLayout block(kCacheLine, limit);
    block.place<unsigned>(tiling.filter_blocks * parts * core_layout.steps() * tiling.tiles * 64);
    shared.items = block.place<StagedItem>(tiling.image_items);
    shared.tops = block.place<int>(problem_.filters_per_group());
    shared.weight_state = block.place<WeightState>(1);
    shared.warpgroups = block.place<unsigned char>(0);
    const int64_t stored_elements = set_y_strides(tiling, limit);
    if (block.end() > limit || tiling.core_matrix_bytes > limit || stored_elements > limit) return false;
    SharedLayout warpgroup(kCacheLine, limit);
    warpgroup.place<unsigned>(tiling.core_matrix_bytes / 4);
    const PostPass post_pass = post_pass_of(problem_, core_layout);
    if (has_separate_conv_output(problem_, post_pass)) {
      tiling.conv_strides = tiling.y_strides;
      const int64_t result_elements =
          post_pass == PostPass::full ? set_conv_strides(tiling, limit) : stored_elements;
      if (result_elements > limit) return false;
      shared.conv_output =
          warpgroup.place<unsigned char>(result_elements * static_cast<int64_t>(sizeof(float)));
      shared.y_staging = warpgroup.place<unsigned char>(stored_elements * size_of(problem_.type));
    } else {
      tiling.conv_strides = tiling.y_strides;
      shared.conv_output = warpgroup.place<unsigned char>(stored_elements * size_of(problem_.type));
      shared.y_staging = shared.conv_output;
    }
    const int64_t filter_folds = tiling.tiles * kTileColumns / core_layout.outputs;
    shared.scales = warpgroup.place<FilterScale>(tiling.filter_blocks * filter_folds);
    shared.state = warpgroup.place<WarpgroupState>(1);
    if (!set_source_strides(tiling, limit)) return false;
    shared.raw = warpgroup.place<unsigned char>(tiling.raw_bytes);
    if (warpgroup.end() > limit) return false;
    shared.warpgroup_bytes = static_cast<int>(warpgroup.end());
    tiling.warpgroups = 1;
    return set_warpgroups(tiling);
  }

  // Sets what so many warpgroups take together; false where it is too much.
  bool set_warpgroups(Tiling& tiling) const {
    const int64_t warpgroup_bytes = tiling.shared.warpgroup_bytes,
                  block_bytes = tiling.shared.warpgroups.bytes;
    // compute-sanitizer takes the 64 rows of a product's second half to lie behind those of its first,
    // wherever they do; the whole of that, from the last warpgroup's cores, must be the block's.
    const int64_t of_last = std::max(warpgroup_bytes, tiling.core_matrix_bytes + kWgmmaM * 16);
    tiling.shared_bytes = block_bytes + (tiling.warpgroups - 1) * warpgroup_bytes + of_last;
    return tiling.shared_bytes <= device_.shared_memory_per_block;
  }

  // The next number of elements from `least` on that lies as far beyond a boundary of so many bytes as
  // `like`.
  int64_t aligned_like(int64_t like, int64_t least, int alignment) const {
    const int64_t chunk = alignment / size_of(problem_.type);
    return least + ((like - least) % chunk + chunk) % chunk;
  }

  // Sets where copies bring a tile's input; false where it is more than `most`.
  bool set_source_strides(Tiling& tiling, int64_t limit) const {
    tiling.source_plane = tiling.source_image = tiling.raw_bytes = 0;
    if (!tiling.copies_input) return true;
    const int64_t chunk = kAlignment / size_of(problem_.type);
    const int64_t width = problem_.input[2], channels = problem_.channels_per_group();
    const int64_t rows = std::min(tiling.input_rows, problem_.input[1]);
    // The chunks at both ends of a channel hold nothing of its neighbours.
    if (rows * width > limit) return false;
    tiling.source_plane = aligned_like(problem_.input_size(), rows * width + 2 * chunk, kAlignment);
    if (channels * tiling.source_plane > limit) return false;
    tiling.source_image = aligned_like(problem_.in_channels * problem_.input_size(),
                                       channels * tiling.source_plane, kAlignment);
    // A core's row may begin in the last row and end beyond it.
    const int64_t beyond = tiling.cores_per_row * tiling.core_layout.pixels;
    tiling.raw_bytes = ceil_divide((tiling.images * tiling.source_image + beyond + chunk) *
                                       static_cast<int64_t>(size_of(problem_.type)),
                                   kAlignment) *
                       kAlignment;
    return tiling.raw_bytes <= limit;
  }

  // Sets the places of what goes to y of a filter block and returns how many elements it spans; more than
  // `most` where it does not fit.
  int64_t set_y_strides(Tiling& tiling, int64_t limit) const {
    const int64_t line = kCacheLine / size_of(problem_.type);
    const int64_t width = problem_.result[2], plane = problem_.result_size();
    const bool pools = problem_.epilogue.pool.kind != PoolKind::none;
    const int64_t columns =
        pools ? width : std::min<int64_t>(int64_t{tiling.cores} * tiling.core_layout.outputs, width);
    const int64_t rows = std::min(tiling.y_rows, problem_.result[1]);
    ResultStrides& strides = tiling.y_strides;
    strides.rows_are_contiguous = columns == width;
    strides.planes_are_contiguous = strides.rows_are_contiguous && rows == problem_.result[1];
    const int64_t row = strides.rows_are_contiguous ? width : aligned_like(width, columns, kCacheLine);
    if (row > limit || rows * row > limit) return limit + 1;
    const int64_t stored_plane = aligned_like(plane, rows * row, kCacheLine);
    if (tiling.filters_per_block * stored_plane > limit) return limit + 1;
    const int64_t image =
        aligned_like(problem_.out_channels * plane, tiling.filters_per_block * stored_plane, kCacheLine);
    strides.row = static_cast<int>(row);
    strides.plane = static_cast<int>(stored_plane);
    strides.image = static_cast<int>(image);
    return tiling.images * image + line - 1;
  }

  // The same of the convolution's results where they lie apart.
  int64_t set_conv_strides(Tiling& tiling, int64_t limit) const {
    const int64_t row =
        int64_t{tiling.cores} * tiling.core_layout.outputs + tiling.cores * tiling.core_layout.outputs % 2;
    const int64_t rows = int64_t{tiling.rows} * tiling.core_layout.folds;
    if (row > limit || rows * row > limit || tiling.filters_per_block * rows * row > limit) return limit + 1;
    ResultStrides& strides = tiling.conv_strides;
    strides.rows_are_contiguous = strides.planes_are_contiguous = false;
    strides.row = static_cast<int>(row);
    strides.plane = static_cast<int>(rows * row);
    strides.image = static_cast<int>(tiling.filters_per_block * rows * row);
    return int64_t{tiling.images} * strides.image;
  }

  // Nanoseconds, without what launching takes: fitted to 8,500 tilings of the course layers measured on an
  // H200 (batch 10,000, TF32 and float16, some with what follows), so that both the times and the choices are
  // near; what writing pairs and 96 columns take, once more to 256 tilings of first layers, and what a tile
  // stages, its units and its products take, to 900 of those and of 20 other layers
  // (benchmarks/toeplitz.md, version 15 and behind it). Each part counts twice, for what the warpgroups of a
  // multiprocessor share and for what a warpgroup waits alone.
  struct TileCost {
    double shared, alone;        // cycles of a tile, as above
    double stored_lines;         // of a tile
    double matrix_words;         // of the block
    double moving;               // nanoseconds that the memory takes for all tiles
    double gained, overlapping;  // factors
  };

  TileCost cost_of_tile(const Tiling& tiling) const {
    const CoreLayout& core_layout = tiling.core_layout;
    const double terms = terms_of(problem_), parts = parts_of(problem_);
    const double units = number(tiling.images * tiling.chunks * tiling.filter_blocks);
    const double products = units * core_layout.steps() * terms;
    const double multiplying = products * 4.0 * tiling.tiles;  // cycles
    const double sum_tiles = units * tiling.tiles;
    const bool is_full =
        tiling.filters_per_block * core_layout.outputs * core_layout.folds == tiling.tiles * kTileColumns &&
        core_layout.outputs > 1;
    const bool pools = pools_accumulators(problem_, core_layout);
    const bool folds = is_full && core_layout.folds > 1;
    // Nearly what the kernel asks before it stores two results as one.
    const bool pairs = problem_.output[2] % 2 == 0;
    const bool is_float32 = problem_.type == ElementType::float32;
    const double pair = is_float32 ? 4.7 : 3.3, unpaired_folds = folds && !pairs ? 22.1 : 0.0;
    const double writing_full = (pairs ? pair : 8.7) + (folds ? 1.2 : 0.0);
    const double store_mode = pools ? 19.5 : is_full ? writing_full : 19.2;
    const double writing_alone = pools ? 12.0 : (is_float32 ? 8.4 : 2.0) + (is_full ? unpaired_folds : 20.0);
    // The 128 threads of a warpgroup stage two items of an image at a time, some of which they stage again.
    const double rounds = number(tiling.images * ceil_divide(tiling.image_items, 256));
    const int64_t of_last_round = std::min<int64_t>(tiling.image_items % 256, 128);
    const double items = number(
        tiling.images * (8 * (tiling.image_items / 256) + 2 * ceil_divide(of_last_round, 32)));  // of a warp
    // What copies have brought is there; what may lie outside the image is loaded number by number.
    const bool is_inside = is_unpadded(problem_, core_layout);
    const double copied = core_layout.bundle > 1 ? 29.0 : !is_float32 ? 16.0 : parts == 1 ? 9.0 : 21.5;
    const double item = tiling.copies_input ? copied : is_inside ? 25.0 : 7.0;
    const double round_alone = tiling.copies_input ? 25.0 : is_inside ? 200.0 : 820.0;
    const double filters = number(problem_.filters_per_group());
    const double y_columns = std::min<double>(tiling.cores * core_layout.outputs, number(problem_.result[2]));
    const double rows = number(std::min(tiling.y_rows - tiling.overlap, problem_.result[1]));
    const double stored_lines =
        tiling.images * filters * rows * y_columns * number(size_of(problem_.type)) / 128;
    const double segments = tiling.images * (tiling.y_strides.planes_are_contiguous ? tiling.filter_blocks
                                             : tiling.y_strides.rows_are_contiguous ? filters
                                                                                    : filters * rows);
    const double shared = post_pass_cycles(tiling) + 0.442 * multiplying + 2.35 * products +
                          store_mode * sum_tiles + item * items * (2 + parts) / 3 + 0.95 * stored_lines +
                          13.1 * segments + 25.3 * tiling.filter_blocks;
    const double alone = 12.0 * products + writing_alone * sum_tiles + (pools ? 235 : 165) * units +
                         round_alone * rounds + 5.8 * segments + 690 * tiling.filter_blocks + 667;
    const double matrix_words =
        number(tiling.filter_blocks * core_layout.steps() * tiling.tiles) * 64 * parts;
    // Kernels of 96 columns gain most where neighbouring tiles go to warpgroups of a block, and in float32 by
    // scales that are fetched ahead, which needs several outputs in a core's row and no copies: what they
    // took of 2019fa and 2018fa conv1 beside this estimate, whose filters are one block and one fold.
    const bool gains_most = problem_.epilogue.is_empty() && tiling.tiles == 12 && core_layout.folds == 1 &&
                            tiling.filter_blocks == 1 && parts == 1;
    const double most_gained = is_float32 && is_full && !tiling.copies_input ? 0.84 : 0.94;
    // By the fit alone, tiles that overlap take so much more than what is counted above.
    const double overlapping = tiling.overlap > 0 ? 1.004 : 1;
    // What stores, loads between them, and lines that are stored in parts take of the memory
    // (benchmarks/toeplitz.md, version 14); less than they do by themselves, so that with what computing
    // takes the times of some 500 tilings come out.
    const double y_bytes =
        number(problem_.batch * problem_.out_channels * problem_.result_size() * size_of(problem_.type));
    const double x_bytes =
        number(problem_.batch * problem_.in_channels * problem_.input_size() * size_of(problem_.type));
    const double parts_of_lines = stores_whole_lines(problem_, tiling)
                                      ? 0
                                      : number(tiling.tile_count) * segments * number(problem_.group);
    // By the times alone, copies of the next tile's input cost this where the memory bounds.
    const double moving =
        (2.1e-4 * y_bytes + 5.2e-4 * x_bytes + 0.06 * parts_of_lines) * (tiling.copies_input ? 1.07 : 1);
    return {shared, alone, stored_lines, matrix_words, moving, gains_most ? most_gained : 1, overlapping};
  }

  // Of all tiles, by so many warpgroups.
  double cost(const Tiling& tiling, const TileCost& tile_cost) const {
    const double multiprocessors = number(std::max<int64_t>(1, device_.multiprocessors / problem_.group));
    const double tiles = number(tiling.tile_count);
    const double turns = std::ceil(tiles / (multiprocessors * tiling.warpgroups));
    const double busy_warpgroups = std::min<double>(tiling.warpgroups, std::ceil(tiles / multiprocessors));
    const double waves = std::ceil(problem_.group / number(device_.multiprocessors));
    const double words = tile_cost.matrix_words / (128.0 * tiling.warpgroups);
    // What the last tiles give goes to memory while nothing is left to compute: 0.2 us for each megabyte,
    // from what batches of 512 take beside the rest.
    const double draining =
        0.0256 * tile_cost.stored_lines * std::min(tiles, multiprocessors * tiling.warpgroups);
    // Of several groups, which the fit had none of, by the suite small-groups
    // (rule-small-groups in benchmarks/h200.json).
    const double several = problem_.is_grouped() && problem_.type == ElementType::float32 ? 1.15 : 1;
    const double computing = waves *
                             (turns * several * (busy_warpgroups * tile_cost.shared + tile_cost.alone) +
                              draining + 469 * words + 6360) *
                             tile_cost.gained * tile_cost.overlapping;
    // Where both are near each other they take longer than either: the eighth root of eighth powers.
    const auto eighth_power = [](double a) {
      const double fourth = a * a * (a * a);
      return fourth * fourth;
    };
    const double sum = eighth_power(computing) + eighth_power(tile_cost.moving);
    return std::sqrt(std::sqrt(std::sqrt(sum))) - kEarlierNanoseconds;
  }

  // Of a tile, what is left when its sums are written.
  double post_pass_cycles(const Tiling& tiling) const {
    const double outputs = number(tiling.images * problem_.filters_per_group()) * tiling.rows *
                           tiling.core_layout.folds * tiling.cores * tiling.core_layout.outputs;
    switch (post_pass_of(problem_, tiling.core_layout)) {
      case PostPass::full:
        return 0.96 * outputs;
      case PostPass::activation:
        // Of a pool's window one. The others are of what ten layers took on an H200 beside those without.
        return pools_accumulators(problem_, tiling.core_layout) ? 0.007 * outputs / 4
                                                                : cycles_of_activation() * outputs;
      case PostPass::none:
        return 0;
    }
    return 0;
  }

  double cycles_of_activation() const {
    switch (problem_.epilogue.activation) {
      case Activation::tanh:
        return 0.6;
      case Activation::silu:
      case Activation::hard_swish:
        return 0.23;
      default:
        return 1.4;
    }
  }

  const ConvProblem& problem_;
  const Device& device_;
};

}  // namespace

CoreLayout::CoreLayout(const ConvProblem& problem, int bundle_, int folds_) : bundle(bundle_), folds(folds_) {
  const auto stride = [&](int axis) { return static_cast<int>(problem.stride[axis]); };
  pixels = kCoreRowElements / bundle;
  const int common = std::gcd(pixels, stride(2));
  outputs = pixels / common;
  column_phases = stride(2) / common;
  row_phases = folds * stride(1);
  window_rows = int64_t{folds - 1} * stride(1) + (problem.filter[1] - 1) * problem.dilation[1] + 1;
  const int64_t columns =
      int64_t{outputs - 1} * stride(2) + (problem.filter[2] - 1) * problem.dilation[2] + 1;
  window_cores = ceil_divide(columns, pixels);
  bundles = ceil_divide(problem.channels_per_group(), bundle);
}

int64_t max_steps(const ConvProblem& problem, const Device& device) {
  return parts_of(problem) > 1 ? most_products_of_ieee(device) : kMaxSteps;
}

std::vector<CoreLayout> core_layouts_of(const ConvProblem& problem, const Device& device) {
  std::vector<CoreLayout> cuts;
  const int64_t channels = problem.channels_per_group();
  for (int bundle = 1; bundle <= kCoreRowElements && bundle < 2 * channels; bundle *= 2) {
    for (int folds = 1; folds <= 4 && folds <= problem.output[1]; folds *= 2) {
      const CoreLayout core_layout(problem, bundle, folds);
      if (core_layout.steps() <= max_steps(problem, device)) cuts.push_back(core_layout);
    }
  }
  return cuts;
}

bool stores_whole_lines(const ConvProblem& problem, const Tiling& tiling) {
  const int64_t line = kCacheLine / size_of(problem.type);
  if (tiling.overlap > 0) return true;
  return int64_t{tiling.cores} * tiling.core_layout.outputs >= problem.output[2] &&
         tiling.y_rows * problem.result[2] % line == 0 && problem.result_size() % line == 0;
}

bool is_unpadded(const ConvProblem& problem, const CoreLayout& core_layout) {
  for (const int axis : {1, 2}) {
    const int64_t last = (problem.output[axis] - 1) * problem.stride[axis] +
                         (problem.filter[axis] - 1) * problem.dilation[axis];
    if (problem.pad_begin[axis] != 0 || last >= problem.input[axis]) return false;
  }
  return problem.channels_per_group() % core_layout.bundle == 0;
}

std::optional<Tiling> best_tiling(const ConvProblem& problem, const Device& device) {
  return Tiler(problem, device).best();
}

void set_step_offsets(const Tiling& tiling, StepCoreMatrices* cores, unsigned* offsets) {
  const CoreLayout& core_layout = tiling.core_layout;
  const auto core_index_of = [&](int64_t core) {
    const int64_t column = core % core_layout.window_cores;
    const int64_t row = core / core_layout.window_cores % core_layout.window_rows;
    const int64_t bundle = core / (core_layout.window_cores * core_layout.window_rows);
    const int64_t plane =
        (bundle * core_layout.row_phases + row % core_layout.row_phases) * core_layout.column_phases +
        column % core_layout.column_phases;
    return plane * tiling.plane_cores + row / core_layout.row_phases * tiling.pitch +
           column / core_layout.column_phases;
  };
  for (int64_t step = 0; step < core_layout.steps(); ++step) {
    int64_t first = 2 * step, second = first + 1;
    if (second >= core_layout.depth_cores()) {
      // What is no core meets weights of zero, wherever it is read.
      cores[step] = {static_cast<short>(first), -1};
      offsets[step] = static_cast<unsigned>(core_index_of(first)) | 1u << 16;
      continue;
    }
    if (core_index_of(second) < core_index_of(first)) std::swap(first, second);
    cores[step] = {static_cast<short>(first), static_cast<short>(second)};
    offsets[step] = static_cast<unsigned>(core_index_of(first)) |
                    static_cast<unsigned>(core_index_of(second) - core_index_of(first)) << 16;
  }
}

Bounds bounds_of(const Epilogue& epilogue) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  if (epilogue.activation == Activation::relu) return {0, kInfinity};
  if (epilogue.activation == Activation::clip) return {epilogue.alpha, epilogue.beta};
  return {-kInfinity, kInfinity};
}

bool pools_accumulators(const ConvProblem& problem, const CoreLayout& core_layout) {
  const Epilogue& epilogue = problem.epilogue;
  const Pool& pool = epilogue.pool;
  if (pool.kind == PoolKind::none || epilogue.has_residual || core_layout.folds != 2 ||
      core_layout.outputs < 2)
    return false;
  for (int axis = 0; axis < 2; ++axis) {
    if (pool.kernel[axis] != 2 || pool.stride[axis] != 2 || pool.pad_begin[axis] != 0) return false;
    if (problem.result[axis + 1] != problem.output[axis + 1] / 2) return false;
  }
  // Averages are of what the activation gives, which the writing of sums only bounds.
  const bool only_bounds = epilogue.activation == Activation::none ||
                           epilogue.activation == Activation::relu || epilogue.activation == Activation::clip;
  return pool.kind == PoolKind::max ? is_increasing(epilogue) : only_bounds;
}

PostPass post_pass_of(const ConvProblem& problem, const CoreLayout& core_layout) {
  const Epilogue& epilogue = problem.epilogue;
  const bool pools_later = epilogue.pool.kind != PoolKind::none && !pools_accumulators(problem, core_layout);
  const Bounds bounds = bounds_of(epilogue);
  if (epilogue.has_residual || pools_later || !(bounds.min <= bounds.max)) return PostPass::full;
  switch (epilogue.activation) {
    case Activation::none:
    case Activation::relu:
    case Activation::clip:
      return PostPass::none;
    default:
      return PostPass::activation;
  }
}

bool has_separate_conv_output(const ConvProblem& problem, PostPass post_pass) {
  if (post_pass == PostPass::none) return false;
  const bool pools = post_pass == PostPass::full && problem.epilogue.pool.kind != PoolKind::none;
  return pools || problem.type != ElementType::float32;
}

}  // namespace convswap::toeplitz
