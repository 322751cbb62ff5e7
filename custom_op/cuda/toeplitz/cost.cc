// Chooses the tiling of toeplitz with the lowest estimated time among some thousand candidates, without
// measuring. The search takes up to half a millisecond, once per shape.

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include "conv/arithmetic.h"
#include "conv/epilogue_math.h"
#include "cuda/host/candidates.h"
#include "cuda/host/estimate.h"
#include "cuda/host/formats.h"
#include "cuda/host/launch.h"
#include "cuda/host/limits.h"
#include "cuda/host/shared_layout.h"
#include "cuda/toeplitz/family.h"

namespace convswap::toeplitz {
namespace {

// Limit of coordinates and counts, below which sums of two fit into the kernel's 32 bits.
constexpr int64_t kMaxIndex = 1 << 30;

class Tiler {
 public:
  Tiler(const ConvProblem& problem, const Device& device) : problem_(problem), device_(device) {}

  void search(Candidates<Tiling>& found) const {
    for (const VectorLayout& vector_layout : vector_layouts_of(problem_, device_)) {
      for (const int accumulator_tiles : kKernelAccumulatorTiles)
        try_filters(vector_layout, accumulator_tiles, found);
    }
  }

 private:
  void try_filters(const VectorLayout& vector_layout, int accumulator_tiles,
                   Candidates<Tiling>& found) const {
    const int per_pass =
        accumulator_tiles * kAccumulatorTileColumns / (vector_layout.outputs * vector_layout.folds);
    if (per_pass == 0) return;
    const int64_t filters = problem_.filters_per_group();
    Tiling tiling{.vector_layout = vector_layout, .accumulator_tiles = accumulator_tiles};
    tiling.filter_passes = static_cast<int>(ceil_divide(filters, per_pass));
    tiling.filters_per_pass = static_cast<int>(ceil_divide(filters, tiling.filter_passes));
    // At least half of the matrix columns would be empty: a kernel of fewer accumulator tiles is enough.
    if (accumulator_tiles > 2 && 2 * tiling.filters_per_pass * vector_layout.outputs * vector_layout.folds <=
                                     accumulator_tiles * kAccumulatorTileColumns)
      return;
    const int64_t all_spans = ceil_divide(problem_.output[2], vector_layout.outputs);
    // Pool windows cross the columns, so tiles with a pool have the image's full width.
    const bool pools = problem_.epilogue.pool.kind != PoolKind::none;
    for (int64_t columns = 1; columns <= (pools ? 1 : all_spans); columns *= 2) {
      tiling.spans = static_cast<int>(ceil_divide(all_spans, columns));
      if (!try_rows(tiling, columns == 1, found)) continue;
      return;  // narrower tiles are only for problems whose wider tiles do not fit
    }
  }

  // Tries the numbers of rows and images. Returns whether any tile fits.
  bool try_rows(Tiling tiling, bool is_full_width, Candidates<Tiling>& found) const {
    const int64_t all = ceil_divide(problem_.output[1], tiling.vector_layout.folds);
    bool fits_any = false;
    for (int64_t row_tiles = 1; row_tiles <= all;
         row_tiles = row_tiles < 16 ? row_tiles + 1 : row_tiles + row_tiles / 4) {
      tiling.rows = static_cast<int>(ceil_divide(all, row_tiles));
      tiling.images = 1;
      if (!set_row_tiles(tiling)) continue;
      const bool fits = try_warpgroups(tiling, found);
      fits_any = fits_any || fits;
      if (!fits || !is_full_width) continue;
      if (row_tiles > 1) {
        try_overlapping(tiling, row_tiles, found);
        continue;
      }
      for (tiling.images = 2; tiling.images <= 8 && tiling.images <= problem_.batch; ++tiling.images) {
        if (!try_warpgroups(tiling, found)) break;
      }
    }
    return fits_any;
  }

  // Tries tiles that each compute as many rows of the next tile as complete their last cache line.
  void try_overlapping(Tiling tiling, int64_t row_tiles, Candidates<Tiling>& found) const {
    const int64_t line = kCacheLine / bytes_per_element(problem_.type), width = problem_.output[2];
    if (stores_whole_lines(problem_, tiling) || !problem_.epilogue.is_empty()) return;
    tiling.overlap = ceil_divide(line - 1, width);
    const int64_t left = problem_.output[1] - tiling.overlap;
    if (left <= 0) return;
    tiling.rows = static_cast<int>(
        ceil_divide(ceil_divide(left, row_tiles) + tiling.overlap, tiling.vector_layout.folds));
    if (set_row_tiles(tiling) && tiling.row_tiles > 1) try_warpgroups(tiling, found);
  }

  // Tries the numbers of warpgroups, with and without TMA loads of the input. Returns whether one warpgroup
  // without TMA loads fits.
  bool try_warpgroups(Tiling tiling, Candidates<Tiling>& found) const {
    tiling.loads_input_by_tma = can_load_by_tma(tiling);
    if (tiling.loads_input_by_tma) try_number_of_warpgroups(tiling, found);
    tiling.loads_input_by_tma = false;
    return try_number_of_warpgroups(tiling, found);
  }

  bool try_number_of_warpgroups(Tiling tiling, Candidates<Tiling>& found) const {
    if (!set_sizes(tiling)) return false;
    const TileCost tile_cost = cost_of_tile(tiling);
    for (tiling.warpgroups = 1;
         tiling.warpgroups <= max_warpgroups(tiling.accumulator_tiles) && set_warpgroups(tiling);
         ++tiling.warpgroups) {
      tiling.cost = cost(tiling, tile_cost);
      found.add(tiling);
    }
    return true;
  }

  // TMA loads full rows of tiles without padding. With an epilogue they would cost the kernel more than they
  // save.
  bool can_load_by_tma(const Tiling& tiling) const {
    return problem_.epilogue.is_empty() && is_unpadded(problem_, tiling.vector_layout) &&
           int64_t{tiling.spans} * tiling.vector_layout.outputs >= problem_.output[2];
  }

  // Sets the rows of y that a tile computes. Returns false if a tile computes none.
  bool set_row_tiles(Tiling& tiling) const {
    const Pool& pool = problem_.epilogue.pool;
    const int64_t rows = int64_t{tiling.rows} * tiling.vector_layout.folds;
    tiling.y_rows = rows;
    tiling.row_advance = rows - tiling.overlap;
    if (pool.kind != PoolKind::none) {
      tiling.y_rows = rows >= problem_.output[1] + pool.pad_begin[0] ? problem_.result[1]
                      : rows >= pool.kernel[0] ? (rows - pool.kernel[0]) / pool.stride[0] + 1
                                               : 0;
      tiling.row_advance = tiling.y_rows * pool.stride[0];
    }
    if (tiling.y_rows == 0 || tiling.row_advance > kMaxIndex) return false;
    tiling.row_tiles = ceil_divide(problem_.result[1] - tiling.overlap, tiling.y_rows - tiling.overlap);
    return true;
  }

  // Sets all sizes except those that depend on the number of warpgroups. Returns false if not even one
  // warpgroup fits.
  bool set_sizes(Tiling& tiling) const {
    const VectorLayout& vector_layout = tiling.vector_layout;
    const int64_t limit = device_.shared_memory_per_block;
    const int64_t rows_beyond = (vector_layout.window_rows - 1) / vector_layout.row_stride_phases;
    const int64_t vectors_beyond = (vector_layout.window_vectors - 1) / vector_layout.column_stride_phases;
    tiling.pitch = tiling.spans + vectors_beyond;
    tiling.plane_rows = tiling.rows + rows_beyond;
    tiling.plane_vectors = tiling.plane_rows * tiling.pitch;
    if (tiling.pitch * 16 > limit || tiling.plane_vectors * 16 > limit) return false;
    const int64_t planes =
        vector_layout.bundles * vector_layout.row_stride_phases * vector_layout.column_stride_phases;
    if (planes * tiling.plane_vectors * 16 > limit) return false;
    tiling.image_vectors = planes * tiling.plane_vectors;
    tiling.part_vectors = tiling.images * tiling.image_vectors;
    tiling.vectors_per_row = tiling.pitch * vector_layout.column_stride_phases;
    tiling.input_rows = tiling.plane_rows * vector_layout.row_stride_phases;
    tiling.image_items = vector_layout.bundles * tiling.input_rows * tiling.vectors_per_row;
    tiling.product_rows = (tiling.rows - 1) * tiling.pitch + tiling.spans;
    tiling.m_tiles = ceil_divide(tiling.product_rows, kWgmmaM);
    tiling.tile_count = ceil_divide(problem_.batch, tiling.images) * tiling.row_tiles *
                        ceil_divide(ceil_divide(problem_.output[2], vector_layout.outputs), tiling.spans);
    if (tiling.tile_count > kMaxIndex) return false;
    // The wgmmas of the last M tile read vectors beyond the image's last, whose results are not stored.
    const int64_t last_read = tiling.m_tiles * kWgmmaM + tiling.image_vectors - tiling.plane_vectors +
                              rows_beyond * tiling.pitch + vectors_beyond + 2;
    const int64_t parts = parts_of(problem_);
    tiling.staged_input_bytes =
        16 * (parts * tiling.part_vectors - tiling.image_vectors + std::max(tiling.image_vectors, last_read));

    SharedOffsets& shared = tiling.shared;
    SharedLayout block(kCacheLine, limit);
    block.place<unsigned>(tiling.filter_passes * parts * vector_layout.steps() * tiling.accumulator_tiles *
                          64);
    shared.items = block.place<StagedItem>(tiling.image_items);
    shared.tops = block.place<int>(problem_.filters_per_group());
    shared.weight_state = block.place<WeightState>(1);
    shared.warpgroups = block.place<unsigned char>(0);
    const int64_t stored_elements = set_y_strides(tiling, limit);
    if (block.end() > limit || tiling.staged_input_bytes > limit || stored_elements > limit) return false;
    SharedLayout warpgroup(kCacheLine, limit);
    warpgroup.place<unsigned>(tiling.staged_input_bytes / 4);
    const PostPass post_pass = post_pass_of(problem_, vector_layout);
    if (has_separate_conv_output(problem_, post_pass)) {
      tiling.conv_strides = tiling.y_strides;
      const int64_t result_elements =
          post_pass == PostPass::full ? set_conv_strides(tiling, limit) : stored_elements;
      if (result_elements > limit) return false;
      shared.conv_output =
          warpgroup.place<unsigned char>(result_elements * static_cast<int64_t>(sizeof(float)));
      shared.y_staging = warpgroup.place<unsigned char>(stored_elements * bytes_per_element(problem_.type));
    } else {
      tiling.conv_strides = tiling.y_strides;
      shared.conv_output = warpgroup.place<unsigned char>(stored_elements * bytes_per_element(problem_.type));
      shared.y_staging = shared.conv_output;
    }
    const int64_t filters_times_folds =
        tiling.accumulator_tiles * kAccumulatorTileColumns / vector_layout.outputs;
    shared.scales = warpgroup.place<FilterScale>(tiling.filter_passes * filters_times_folds);
    shared.state = warpgroup.place<WarpgroupState>(1);
    if (!set_source_strides(tiling, limit)) return false;
    shared.raw = warpgroup.place<unsigned char>(tiling.raw_bytes);
    if (warpgroup.end() > limit) return false;
    shared.warpgroup_bytes = static_cast<int>(warpgroup.end());
    tiling.warpgroups = 1;
    return set_warpgroups(tiling);
  }

  // Sets the shared memory of tiling.warpgroups warpgroups. Returns false if it exceeds the device's.
  bool set_warpgroups(Tiling& tiling) const {
    const int64_t warpgroup_bytes = tiling.shared.warpgroup_bytes,
                  block_bytes = tiling.shared.warpgroups.bytes;
    // compute-sanitizer assumes that the second 64 vectors that a wgmma reads follow the first 64, wherever
    // they are. This range must therefore lie in the block's memory for the last warpgroup, too.
    const int64_t last_warpgroup_bytes = std::max(warpgroup_bytes, tiling.staged_input_bytes + kWgmmaM * 16);
    tiling.shared_bytes = block_bytes + (tiling.warpgroups - 1) * warpgroup_bytes + last_warpgroup_bytes;
    return tiling.shared_bytes <= device_.shared_memory_per_block;
  }

  // Returns the smallest number of elements, at least `minimum`, that has the same remainder by `alignment`
  // bytes as `reference` elements.
  int64_t aligned_like(int64_t reference, int64_t minimum, int alignment) const {
    const int64_t elements = alignment / bytes_per_element(problem_.type);
    return minimum + ((reference - minimum) % elements + elements) % elements;
  }

  // Sets the strides of the raw input that TMA loads. Returns false if it exceeds `limit` bytes.
  bool set_source_strides(Tiling& tiling, int64_t limit) const {
    tiling.source_channel_stride = tiling.source_image_stride = tiling.raw_bytes = 0;
    if (!tiling.loads_input_by_tma) return true;
    const int64_t alignment_elements = kAlignment / bytes_per_element(problem_.type);
    const int64_t width = problem_.input[2], channels = problem_.channels_per_group();
    const int64_t rows = std::min(tiling.input_rows, problem_.input[1]);
    // The 16-byte units at both ends of a channel hold no element of another channel.
    if (rows * width > limit) return false;
    tiling.source_channel_stride =
        aligned_like(problem_.input_size(), rows * width + 2 * alignment_elements, kAlignment);
    if (channels * tiling.source_channel_stride > limit) return false;
    tiling.source_image_stride = aligned_like(problem_.in_channels * problem_.input_size(),
                                              channels * tiling.source_channel_stride, kAlignment);
    // A vector may begin in the last row and end beyond it.
    const int64_t beyond = tiling.vectors_per_row * tiling.vector_layout.pixels;
    tiling.raw_bytes =
        ceil_divide((tiling.images * tiling.source_image_stride + beyond + alignment_elements) *
                        static_cast<int64_t>(bytes_per_element(problem_.type)),
                    kAlignment) *
        kAlignment;
    return tiling.raw_bytes <= limit;
  }

  // Sets the strides of a filter block's data for y. Returns the number of elements that they need, or more
  // than `limit` if they do not fit.
  int64_t set_y_strides(Tiling& tiling, int64_t limit) const {
    const int64_t line = kCacheLine / bytes_per_element(problem_.type);
    const int64_t width = problem_.result[2], plane = problem_.result_size();
    const bool pools = problem_.epilogue.pool.kind != PoolKind::none;
    const int64_t columns =
        pools ? width : std::min<int64_t>(int64_t{tiling.spans} * tiling.vector_layout.outputs, width);
    const int64_t rows = std::min(tiling.y_rows, problem_.result[1]);
    ResultStrides& strides = tiling.y_strides;
    strides.rows_are_contiguous = columns == width;
    strides.planes_are_contiguous = strides.rows_are_contiguous && rows == problem_.result[1];
    const int64_t row = strides.rows_are_contiguous ? width : aligned_like(width, columns, kCacheLine);
    if (row > limit || rows * row > limit) return limit + 1;
    const int64_t stored_plane = aligned_like(plane, rows * row, kCacheLine);
    if (tiling.filters_per_pass * stored_plane > limit) return limit + 1;
    const int64_t image =
        aligned_like(problem_.out_channels * plane, tiling.filters_per_pass * stored_plane, kCacheLine);
    strides.row = static_cast<int>(row);
    strides.plane = static_cast<int>(stored_plane);
    strides.image = static_cast<int>(image);
    return tiling.images * image + line - 1;
  }

  // Sets the strides of a separate Conv output. Returns the same.
  int64_t set_conv_strides(Tiling& tiling, int64_t limit) const {
    const int64_t row = int64_t{tiling.spans} * tiling.vector_layout.outputs +
                        tiling.spans * tiling.vector_layout.outputs % 2;
    const int64_t rows = int64_t{tiling.rows} * tiling.vector_layout.folds;
    if (row > limit || rows * row > limit || tiling.filters_per_pass * rows * row > limit) return limit + 1;
    ResultStrides& strides = tiling.conv_strides;
    strides.rows_are_contiguous = strides.planes_are_contiguous = false;
    strides.row = static_cast<int>(row);
    strides.plane = static_cast<int>(rows * row);
    strides.image = static_cast<int>(tiling.filters_per_pass * rows * row);
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
    const VectorLayout& vector_layout = tiling.vector_layout;
    const double terms = terms_of(problem_), parts = parts_of(problem_);
    const double units = to_double(tiling.images * tiling.m_tiles * tiling.filter_passes);
    const double products = units * vector_layout.steps() * terms;
    const double multiplying = products * 4.0 * tiling.accumulator_tiles;  // cycles
    const double sum_tiles = units * tiling.accumulator_tiles;
    const bool is_full = tiling.filters_per_pass * vector_layout.outputs * vector_layout.folds ==
                             tiling.accumulator_tiles * kAccumulatorTileColumns &&
                         vector_layout.outputs > 1;
    const bool pools = pools_accumulators(problem_, vector_layout);
    const bool folds = is_full && vector_layout.folds > 1;
    // Nearly what the kernel asks before it stores two results as one.
    const bool pairs = problem_.output[2] % 2 == 0;
    const bool is_float32 = problem_.type == ElementType::float32;
    const double pair = is_float32 ? 4.7 : 3.3, unpaired_folds = folds && !pairs ? 22.1 : 0.0;
    const double writing_full = (pairs ? pair : 8.7) + (folds ? 1.2 : 0.0);
    const double store_mode = pools ? 19.5 : is_full ? writing_full : 19.2;
    const double writing_alone = pools ? 12.0 : (is_float32 ? 8.4 : 2.0) + (is_full ? unpaired_folds : 20.0);
    // The 128 threads of a warpgroup stage two items of an image at a time, some of which they stage again.
    const double rounds = to_double(tiling.images * ceil_divide(tiling.image_items, 256));
    const int64_t of_last_round = std::min<int64_t>(tiling.image_items % 256, 128);
    const double items = to_double(
        tiling.images * (8 * (tiling.image_items / 256) + 2 * ceil_divide(of_last_round, 32)));  // of a warp
    // What copies have brought is there; what may lie outside the image is loaded number by number.
    const bool is_inside = is_unpadded(problem_, vector_layout);
    const double copied = vector_layout.bundle > 1 ? 29.0 : !is_float32 ? 16.0 : parts == 1 ? 9.0 : 21.5;
    const double item = tiling.loads_input_by_tma ? copied : is_inside ? 25.0 : 7.0;
    const double round_alone = tiling.loads_input_by_tma ? 25.0 : is_inside ? 200.0 : 820.0;
    const double filters = to_double(problem_.filters_per_group());
    const double y_columns =
        std::min<double>(tiling.spans * vector_layout.outputs, to_double(problem_.result[2]));
    const double rows = to_double(std::min(tiling.y_rows - tiling.overlap, problem_.result[1]));
    const double stored_lines =
        tiling.images * filters * rows * y_columns * to_double(bytes_per_element(problem_.type)) / 128;
    const double segments = tiling.images * (tiling.y_strides.planes_are_contiguous ? tiling.filter_passes
                                             : tiling.y_strides.rows_are_contiguous ? filters
                                                                                    : filters * rows);
    const double shared = post_pass_cycles(tiling) + 0.442 * multiplying + 2.35 * products +
                          store_mode * sum_tiles + item * items * (2 + parts) / 3 + 0.95 * stored_lines +
                          13.1 * segments + 25.3 * tiling.filter_passes;
    const double alone = 12.0 * products + writing_alone * sum_tiles + (pools ? 235 : 165) * units +
                         round_alone * rounds + 5.8 * segments + 690 * tiling.filter_passes + 667;
    const double matrix_words =
        to_double(tiling.filter_passes * vector_layout.steps() * tiling.accumulator_tiles) * 64 * parts;
    // Kernels of 96 columns gain most where neighbouring tiles go to warpgroups of a block, and in float32 by
    // scales that are fetched ahead, which needs several outputs in a core's row and no copies: what they
    // took of 2019fa and 2018fa conv1 beside this estimate, whose filters are one block and one fold.
    const bool gains_most = problem_.epilogue.is_empty() && tiling.accumulator_tiles == 12 &&
                            vector_layout.folds == 1 && tiling.filter_passes == 1 && parts == 1;
    const double most_gained = is_float32 && is_full && !tiling.loads_input_by_tma ? 0.84 : 0.94;
    // By the fit alone, tiles that overlap take so much more than what is counted above.
    const double overlapping = tiling.overlap > 0 ? 1.004 : 1;
    // What stores, loads between them, and lines that are stored in parts take of the memory
    // (benchmarks/toeplitz.md, version 14); less than they do by themselves, so that with what computing
    // takes the times of some 500 tilings come out.
    const double y_bytes = to_double(problem_.batch * problem_.out_channels * problem_.result_size() *
                                     bytes_per_element(problem_.type));
    const double x_bytes = to_double(problem_.batch * problem_.in_channels * problem_.input_size() *
                                     bytes_per_element(problem_.type));
    const double parts_of_lines = stores_whole_lines(problem_, tiling)
                                      ? 0
                                      : to_double(tiling.tile_count) * segments * to_double(problem_.group);
    // By the times alone, copies of the next tile's input cost this where the memory bounds.
    const double moving = (2.1e-4 * y_bytes + 5.2e-4 * x_bytes + 0.06 * parts_of_lines) *
                          (tiling.loads_input_by_tma ? 1.07 : 1);
    return {shared, alone, stored_lines, matrix_words, moving, gains_most ? most_gained : 1, overlapping};
  }

  // Of all tiles, by so many warpgroups.
  double cost(const Tiling& tiling, const TileCost& tile_cost) const {
    const double multiprocessors = to_double(std::max<int64_t>(1, device_.multiprocessors / problem_.group));
    const double tiles = to_double(tiling.tile_count);
    const double turns = std::ceil(tiles / (multiprocessors * tiling.warpgroups));
    const double busy_warpgroups = std::min<double>(tiling.warpgroups, std::ceil(tiles / multiprocessors));
    const double waves = std::ceil(problem_.group / to_double(device_.multiprocessors));
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
    return std::sqrt(std::sqrt(std::sqrt(sum))) - kEarlyStartNanoseconds;
  }

  // Of a tile, what is left when its sums are written.
  double post_pass_cycles(const Tiling& tiling) const {
    const double outputs = to_double(tiling.images * problem_.filters_per_group()) * tiling.rows *
                           tiling.vector_layout.folds * tiling.spans * tiling.vector_layout.outputs;
    switch (post_pass_of(problem_, tiling.vector_layout)) {
      case PostPass::full:
        return 0.96 * outputs;
      case PostPass::activation:
        // Of a pool's window one. The others are of what ten layers took on an H200 beside those without.
        return pools_accumulators(problem_, tiling.vector_layout) ? 0.007 * outputs / 4
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

VectorLayout::VectorLayout(const ConvProblem& problem, int bundle_, int folds_)
    : bundle(bundle_), folds(folds_) {
  const auto stride = [&](int axis) { return static_cast<int>(problem.stride[axis]); };
  pixels = kVectorElements / bundle;
  const int common = std::gcd(pixels, stride(2));
  outputs = pixels / common;
  column_stride_phases = stride(2) / common;
  row_stride_phases = folds * stride(1);
  window_rows = int64_t{folds - 1} * stride(1) + (problem.filter[1] - 1) * problem.dilation[1] + 1;
  const int64_t columns =
      int64_t{outputs - 1} * stride(2) + (problem.filter[2] - 1) * problem.dilation[2] + 1;
  window_vectors = ceil_divide(columns, pixels);
  bundles = ceil_divide(problem.channels_per_group(), bundle);
}

int64_t max_steps(const ConvProblem& problem, const Device& device) {
  return parts_of(problem) > 1 ? max_ieee_products(device) : kMaxSteps;
}

std::vector<VectorLayout> vector_layouts_of(const ConvProblem& problem, const Device& device) {
  std::vector<VectorLayout> cuts;
  const int64_t channels = problem.channels_per_group();
  for (int bundle = 1; bundle <= kVectorElements && bundle < 2 * channels; bundle *= 2) {
    for (int folds = 1; folds <= 4 && folds <= problem.output[1]; folds *= 2) {
      const VectorLayout vector_layout(problem, bundle, folds);
      if (vector_layout.steps() <= max_steps(problem, device)) cuts.push_back(vector_layout);
    }
  }
  return cuts;
}

bool stores_whole_lines(const ConvProblem& problem, const Tiling& tiling) {
  const int64_t line = kCacheLine / bytes_per_element(problem.type);
  if (tiling.overlap > 0) return true;
  return int64_t{tiling.spans} * tiling.vector_layout.outputs >= problem.output[2] &&
         tiling.y_rows * problem.result[2] % line == 0 && problem.result_size() % line == 0;
}

bool is_unpadded(const ConvProblem& problem, const VectorLayout& vector_layout) {
  for (const int axis : {1, 2}) {
    const int64_t last = (problem.output[axis] - 1) * problem.stride[axis] +
                         (problem.filter[axis] - 1) * problem.dilation[axis];
    if (problem.pad_begin[axis] != 0 || last >= problem.input[axis]) return false;
  }
  return problem.channels_per_group() % vector_layout.bundle == 0;
}

std::optional<Tiling> best_tiling(const ConvProblem& problem, const Device& device) {
  return best_of<Tiling>([&](auto& found) { Tiler(problem, device).search(found); });
}

std::vector<Tiling> cheapest_tilings(const ConvProblem& problem, const Device& device) {
  return all_of<Tiling>([&](auto& found) { Tiler(problem, device).search(found); });
}

void set_step_offsets(const Tiling& tiling, StepVectors* vectors, unsigned* offsets) {
  const VectorLayout& vector_layout = tiling.vector_layout;
  const auto vector_index_of = [&](int64_t vector) {
    const int64_t column = vector % vector_layout.window_vectors;
    const int64_t row = vector / vector_layout.window_vectors % vector_layout.window_rows;
    const int64_t bundle = vector / (vector_layout.window_vectors * vector_layout.window_rows);
    const int64_t plane = (bundle * vector_layout.row_stride_phases + row % vector_layout.row_stride_phases) *
                              vector_layout.column_stride_phases +
                          column % vector_layout.column_stride_phases;
    return plane * tiling.plane_vectors + row / vector_layout.row_stride_phases * tiling.pitch +
           column / vector_layout.column_stride_phases;
  };
  for (int64_t step = 0; step < vector_layout.steps(); ++step) {
    int64_t first = 2 * step, second = first + 1;
    if (second >= vector_layout.k_vectors()) {
      // The missing second vector has zero weights, so any vector serves.
      vectors[step] = {static_cast<short>(first), -1};
      offsets[step] = static_cast<unsigned>(vector_index_of(first)) | 1u << 16;
      continue;
    }
    if (vector_index_of(second) < vector_index_of(first)) std::swap(first, second);
    vectors[step] = {static_cast<short>(first), static_cast<short>(second)};
    offsets[step] = static_cast<unsigned>(vector_index_of(first)) |
                    static_cast<unsigned>(vector_index_of(second) - vector_index_of(first)) << 16;
  }
}

Bounds bounds_of(const Epilogue& epilogue) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  if (epilogue.activation == Activation::relu) return {0, kInfinity};
  if (epilogue.activation == Activation::clip) return {epilogue.alpha, epilogue.beta};
  return {-kInfinity, kInfinity};
}

bool pools_accumulators(const ConvProblem& problem, const VectorLayout& vector_layout) {
  const Epilogue& epilogue = problem.epilogue;
  const Pool& pool = epilogue.pool;
  if (pool.kind == PoolKind::none || epilogue.has_residual || vector_layout.folds != 2 ||
      vector_layout.outputs < 2)
    return false;
  for (int axis = 0; axis < 2; ++axis) {
    if (pool.kernel[axis] != 2 || pool.stride[axis] != 2 || pool.pad_begin[axis] != 0) return false;
    if (problem.result[axis + 1] != problem.output[axis + 1] / 2) return false;
  }
  // An average is taken of activated values, and the accumulators' writer only clamps.
  const bool only_bounds = epilogue.activation == Activation::none ||
                           epilogue.activation == Activation::relu || epilogue.activation == Activation::clip;
  return pool.kind == PoolKind::max ? is_increasing(epilogue) : only_bounds;
}

PostPass post_pass_of(const ConvProblem& problem, const VectorLayout& vector_layout) {
  const Epilogue& epilogue = problem.epilogue;
  const bool pools_later =
      epilogue.pool.kind != PoolKind::none && !pools_accumulators(problem, vector_layout);
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
