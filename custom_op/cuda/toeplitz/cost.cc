// Chooses the tiling of toeplitz with the lowest estimated time among some hundred candidates, without
// measuring. benchmarks/toeplitz.md explains the estimate.

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include "conv/arithmetic.h"
#include "conv/epilogue_math.h"
#include "cuda/costs/cost_table.h"
#include "cuda/host/candidates.h"
#include "cuda/host/estimate.h"
#include "cuda/host/formats.h"
#include "cuda/host/limits.h"
#include "cuda/host/shared_layout.h"
#include "cuda/primitives/warpgroup.h"
#include "cuda/toeplitz/family.h"

namespace convswap::toeplitz {
namespace {

// Limit of coordinates and counts, below which sums of two fit into the kernel's 32 bits.
constexpr int64_t kMaxIndex = 1 << 30;

constexpr int64_t kWarpSize = 32, kWarps = kWarpgroupThreads / kWarpSize;
constexpr int64_t kReservedBytes = 1024;  // of shared memory, which the device keeps for each block
constexpr int64_t kMatrixTileWords = 64;  // 32-bit words of an accumulator tile's matrix columns in a k-step
constexpr double kKilobyte = 1024;

double square(double value) { return value * value; }

// The part of an estimate that does not depend on the number of warpgroups.
struct TileCost {
  double busy = 0;           // nanoseconds for which a tile occupies units that all warpgroups share
  double waiting = 0;        // nanoseconds for which the tile's warpgroup waits
  double moving = 0;         // nanoseconds for which all tiles occupy the memory
  int64_t blocks = 0;        // of the grid
  int64_t block_tiles = 0;   // of the block with most tiles
  int64_t matrix_words = 0;  // of a block
  int64_t stored_bytes = 0;  // of a tile
};

// Estimates of the tilings of a vector layout. A multiprocessor's time is the sum of two parts: tiles of all
// its warpgroups keep its units busy, and a warpgroup waits during each of its own tiles. Memory moves the
// tensors meanwhile, but the last tiles' results when nothing else is left to do.
class LayoutCost {
 public:
  LayoutCost(const ConvProblem& problem, const Device& device, const VectorLayout& vector_layout)
      : problem_(problem),
        device_(device),
        costs_(costs_of(device).toeplitz),
        multiprocessors_(std::max(1, device.multiprocessors)),
        blocks_per_group_(std::max<int64_t>(1, multiprocessors_ / problem.group)),
        element_bytes_(bytes_per_element(problem.type)),
        channels_(problem.channels_per_group()),
        filters_(problem.filters_per_group()),
        parts_(parts_of(problem)),
        steps_(vector_layout.steps()),
        products_(terms_of(problem) * steps_),
        pools_accumulators_(pools_accumulators(problem, vector_layout)),
        has_full_post_pass_(post_pass_of(problem, vector_layout) == PostPass::full),
        tensor_bytes_(problem.tensor_bytes()) {
    const int64_t weights =
        channels_ * filters_ * problem.filter_size() * vector_layout.outputs * vector_layout.folds * parts_;
    weights_ = to_double(weights * element_bytes_) / kKilobyte * costs_.weights;
    activation_ = activation_cycles(problem.epilogue, costs_of(device)) / kWarpSize * costs_.activation;
  }

  TileCost cost_of_tile(const Tiling& tiling) const {
    TileCost cost;
    add_input(tiling, cost);
    add_products(tiling, cost);
    add_results(tiling, cost);
    const int64_t group_blocks = std::min(tiling.tile_count, blocks_per_group_);
    cost.blocks = group_blocks * problem_.group;
    cost.block_tiles = ceil_divide(tiling.tile_count, group_blocks);
    cost.matrix_words = tiling.filter_passes * parts_ * steps_ * tiling.accumulator_tiles * kMatrixTileWords;
    return cost;
  }

  // Nanoseconds of a tiling whose TileCost is given.
  double of(const Tiling& tiling, const TileCost& tile) const {
    const int64_t resident = resident_blocks(tiling);
    const int64_t waves = ceil_divide(tile.blocks, resident * multiprocessors_);
    // Blocks of later waves start when others end, so multiprocessors get equal numbers of them.
    const double blocks = waves == 1 ? to_double(ceil_divide(tile.blocks, multiprocessors_))
                                     : to_double(tile.blocks) / to_double(multiprocessors_);
    const double turns = to_double(ceil_divide(tile.block_tiles, tiling.warpgroups));
    const double thread_words = to_double(tile.matrix_words) / (tiling.warpgroups * kWarpgroupThreads);
    const double crowding = costs_.crowding * (tiling.warpgroups - 1) * (tiling.warpgroups - 1);
    const double busy = blocks * (to_double(tile.block_tiles) * tile.busy + weights_);
    const double waiting =
        to_double(waves) * (turns * (tile.waiting + crowding) + costs_.setup + costs_.matrix * thread_words);
    const int64_t last_tiles =
        std::min(std::min(tile.blocks, resident * multiprocessors_) * tiling.warpgroups,
                 tiling.tile_count * problem_.group);
    const double draining = to_double(last_tiles * tile.stored_bytes) / costs_.memory;
    // The longer of both times, or a little more where they are near each other.
    const double computing = square(busy + waiting), moving = square(tile.moving);
    return costs_.launch + std::sqrt(std::sqrt(square(computing) + square(moving))) + draining;
  }

 private:
  // Blocks that a multiprocessor holds at a time. Its registers are enough for the warpgroups of the largest
  // block.
  int64_t resident_blocks(const Tiling& tiling) const {
    const int64_t by_registers = max_warpgroups(tiling.accumulator_tiles) / tiling.warpgroups;
    if (by_registers == 1) return 1;
    const int64_t by_memory =
        device_.shared_memory_per_multiprocessor / (tiling.shared_bytes + kReservedBytes);
    return std::max<int64_t>(1, std::min(by_registers, by_memory));
  }

  // Staging of the input. A thread loads two vectors of an image, converts them, and loads the next two.
  void add_input(const Tiling& tiling, TileCost& cost) const {
    constexpr int64_t kRound = 2 * kWarpgroupThreads;
    const int64_t full_rounds = tiling.image_items / kRound, rest = tiling.image_items % kRound;
    const int64_t rounds = full_rounds + (rest > 0 ? 1 : 0);
    cost.waiting += to_double(tiling.images * rounds) * costs_.round;
    // TMA has loaded the input to shared memory, from where staging costs next to nothing.
    if (tiling.loads_input_by_tma) return;
    // Threads without a vector stage the last one again.
    const int64_t vectors =
        full_rounds * kRound + 2 * round_up(std::min<int64_t>(rest, kWarpgroupThreads), kWarpSize);
    const int64_t bytes = vectors * kVectorElements * element_bytes_ * parts_;
    cost.busy += to_double(tiling.images * bytes) / kKilobyte * costs_.staging;
    const int64_t lines = tiling.input_rows * problem_.input[2] * element_bytes_ / kCacheLine + 2;
    cost.waiting +=
        to_double(tiling.images * ceil_divide(channels_ * lines, kWarpgroupThreads)) * costs_.prefetch;
  }

  // Products of M tiles with the matrix. A wgmma reads both operands from shared memory.
  void add_products(const Tiling& tiling, TileCost& cost) const {
    const double m_tiles = to_double(tiling.images * tiling.m_tiles * tiling.filter_passes);
    const int64_t columns = tiling.accumulator_tiles * kAccumulatorTileColumns;
    const double kilobytes = to_double((kWgmmaM + columns) * kWgmmaK * 2) / kKilobyte;
    cost.busy += m_tiles * to_double(products_) * kilobytes * costs_.product;
    cost.waiting += m_tiles * costs_.m_tile + (tiling.filter_passes + 1) * costs_.pass;
    const bool is_full =
        tiling.vector_layout.outputs > 1 &&
        tiling.filters_per_pass * tiling.vector_layout.outputs * tiling.vector_layout.folds == columns;
    if (is_full && !pools_accumulators_) return;
    const double checked = m_tiles * tiling.accumulator_tiles * costs_.checked;
    cost.busy += checked;
    cost.waiting += checked;
  }

  // Activations, the second pass of a residual or a pool, and stores.
  void add_results(const Tiling& tiling, TileCost& cost) const {
    const int64_t columns = y_columns(tiling), filters = tiling.images * filters_;
    cost.busy += to_double(filters * tiling.y_rows * columns) * activation_;
    if (has_full_post_pass_) cost.waiting += post_pass(tiling, columns);
    const int64_t rows = std::min(tiling.y_rows - tiling.overlap, problem_.result[1]);
    const int64_t stores = tiling.y_strides.planes_are_contiguous ? tiling.images * tiling.filter_passes
                           : tiling.y_strides.rows_are_contiguous ? filters
                                                                  : filters * rows;
    cost.busy += to_double(stores) * costs_.store;
    // A store shares the lines at both of its ends with others. Each moves once more.
    const int64_t shared_lines =
        stores_whole_lines(problem_, tiling) ? 0 : 2 * stores * tiling.tile_count * problem_.group;
    cost.moving = to_double(tensor_bytes_ + shared_lines * kCacheLine) / costs_.memory;
    if (tiling.loads_input_by_tma) cost.moving *= costs_.copies;
    cost.stored_bytes = filters * rows * columns * element_bytes_;
  }

  // Nanoseconds of a tile's second pass. A warp computes a row, 32 columns at a time. A row has as much
  // latency before its first columns as for 32 of them.
  double post_pass(const Tiling& tiling, int64_t columns) const {
    const int64_t rows =
        ceil_divide(int64_t{tiling.images} * tiling.filters_per_pass * tiling.y_rows, kWarps);
    return to_double(tiling.filter_passes * rows * (1 + ceil_divide(columns, kWarpSize))) * costs_.post_pass;
  }

  int64_t y_columns(const Tiling& tiling) const {
    const int64_t all = problem_.result[2];
    if (problem_.epilogue.pool.kind != PoolKind::none) return all;
    return std::min(int64_t{tiling.spans} * tiling.vector_layout.outputs, all);
  }

  const ConvProblem& problem_;
  const Device& device_;
  const decltype(Costs::toeplitz)& costs_;
  const int64_t multiprocessors_, blocks_per_group_, element_bytes_, channels_, filters_, parts_;
  const int64_t steps_, products_;  // k-steps and wgmmas of an M tile
  const bool pools_accumulators_, has_full_post_pass_;
  const int64_t tensor_bytes_;
  double weights_ = 0;     // nanoseconds of a block's weights
  double activation_ = 0;  // nanoseconds of a result's activation
};

// Searches the tilings of a vector layout.
class Tiler {
 public:
  Tiler(const ConvProblem& problem, const Device& device, const VectorLayout& vector_layout)
      : problem_(problem),
        device_(device),
        vector_layout_(vector_layout),
        cost_(problem, device, vector_layout),
        limit_(device.shared_memory_per_block),
        element_bytes_(bytes_per_element(problem.type)),
        filters_(problem.filters_per_group()),
        parts_(parts_of(problem)),
        pools_(problem.epilogue.pool.kind != PoolKind::none),
        post_pass_(post_pass_of(problem, vector_layout)),
        has_separate_conv_output_(has_separate_conv_output(problem, post_pass_)),
        all_rows_(ceil_divide(problem.output[1], vector_layout.folds)),
        all_spans_(ceil_divide(problem.output[2], vector_layout.outputs)),
        rows_beyond_((vector_layout.window_rows - 1) / vector_layout.row_stride_phases),
        vectors_beyond_((vector_layout.window_vectors - 1) / vector_layout.column_stride_phases),
        planes_(vector_layout.bundles * vector_layout.row_stride_phases * vector_layout.column_stride_phases),
        steps_(vector_layout.steps()),
        // With an epilogue TMA loads would cost the kernel more than they save.
        can_load_by_tma_(problem.epilogue.is_empty() && is_unpadded(problem, vector_layout)) {}

  void search(Candidates<Tiling>& found) const {
    for (const int accumulator_tiles : kKernelAccumulatorTiles) try_filters(accumulator_tiles, found);
  }

 private:
  void try_filters(int accumulator_tiles, Candidates<Tiling>& found) const {
    const int outputs = vector_layout_.outputs * vector_layout_.folds;
    const int columns = accumulator_tiles * kAccumulatorTileColumns;
    const int per_pass = columns / outputs;
    if (per_pass == 0) return;
    Tiling tiling{.vector_layout = vector_layout_, .accumulator_tiles = accumulator_tiles};
    tiling.filter_passes = static_cast<int>(ceil_divide(filters_, per_pass));
    tiling.filters_per_pass = static_cast<int>(ceil_divide(filters_, tiling.filter_passes));
    // At least half of the matrix columns would be empty: a kernel of fewer accumulator tiles is enough.
    if (accumulator_tiles > 2 && 2 * tiling.filters_per_pass * outputs <= columns) return;
    // Pool windows cross the columns, so tiles with a pool have the image's full width.
    for (int64_t column_tiles = 1; column_tiles <= (pools_ ? 1 : all_spans_); column_tiles *= 2) {
      tiling.spans = static_cast<int>(ceil_divide(all_spans_, column_tiles));
      if (!try_rows(tiling, column_tiles == 1, found)) continue;
      return;  // narrower tiles are only for problems whose wider tiles do not fit
    }
  }

  // Tries the numbers of rows and images. Returns whether any tile fits.
  bool try_rows(Tiling tiling, bool is_full_width, Candidates<Tiling>& found) const {
    bool fits_any = false;
    for (int64_t row_tiles = 1; row_tiles <= all_rows_;
         row_tiles = row_tiles < 16 ? row_tiles + 1 : row_tiles + row_tiles / 4) {
      tiling.rows = static_cast<int>(ceil_divide(all_rows_, row_tiles));
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
    const int64_t line = kCacheLine / element_bytes_, width = problem_.output[2];
    if (stores_whole_lines(problem_, tiling) || !problem_.epilogue.is_empty()) return;
    tiling.overlap = ceil_divide(line - 1, width);
    const int64_t left = problem_.output[1] - tiling.overlap;
    if (left <= 0) return;
    tiling.rows =
        static_cast<int>(ceil_divide(ceil_divide(left, row_tiles) + tiling.overlap, vector_layout_.folds));
    if (set_row_tiles(tiling) && tiling.row_tiles > 1) try_warpgroups(tiling, found);
  }

  // Tries the numbers of warpgroups, with and without TMA loads of the input. Returns whether one warpgroup
  // without TMA loads fits. TMA loads full rows of tiles without padding.
  bool try_warpgroups(Tiling& tiling, Candidates<Tiling>& found) const {
    tiling.loads_input_by_tma =
        can_load_by_tma_ && int64_t{tiling.spans} * vector_layout_.outputs >= problem_.output[2];
    if (tiling.loads_input_by_tma) try_number_of_warpgroups(tiling, found);
    tiling.loads_input_by_tma = false;
    return try_number_of_warpgroups(tiling, found);
  }

  bool try_number_of_warpgroups(Tiling& tiling, Candidates<Tiling>& found) const {
    if (!set_sizes(tiling)) return false;
    const TileCost tile = cost_.cost_of_tile(tiling);
    for (tiling.warpgroups = 1;
         tiling.warpgroups <= max_warpgroups(tiling.accumulator_tiles) && set_warpgroups(tiling);
         ++tiling.warpgroups) {
      tiling.cost = cost_.of(tiling, tile);
      found.add(tiling);
    }
    return true;
  }

  // Sets the rows of y that a tile computes. Returns false if a tile computes none.
  bool set_row_tiles(Tiling& tiling) const {
    const Pool& pool = problem_.epilogue.pool;
    const int64_t rows = int64_t{tiling.rows} * vector_layout_.folds;
    tiling.y_rows = rows;
    tiling.row_advance = rows - tiling.overlap;
    if (pools_) {
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
    tiling.pitch = tiling.spans + vectors_beyond_;
    tiling.plane_rows = tiling.rows + rows_beyond_;
    tiling.plane_vectors = tiling.plane_rows * tiling.pitch;
    if (tiling.pitch * 16 > limit_ || tiling.plane_vectors * 16 > limit_) return false;
    if (planes_ * tiling.plane_vectors * 16 > limit_) return false;
    tiling.image_vectors = planes_ * tiling.plane_vectors;
    tiling.part_vectors = tiling.images * tiling.image_vectors;
    tiling.vectors_per_row = tiling.pitch * vector_layout_.column_stride_phases;
    tiling.input_rows = tiling.plane_rows * vector_layout_.row_stride_phases;
    tiling.image_items = vector_layout_.bundles * tiling.input_rows * tiling.vectors_per_row;
    tiling.product_rows = (tiling.rows - 1) * tiling.pitch + tiling.spans;
    tiling.m_tiles = ceil_divide(tiling.product_rows, kWgmmaM);
    // The wgmmas of the last M tile read vectors beyond the image's last, whose results are not stored.
    const int64_t last_read = tiling.m_tiles * kWgmmaM + tiling.image_vectors - tiling.plane_vectors +
                              rows_beyond_ * tiling.pitch + vectors_beyond_ + 2;
    tiling.staged_input_bytes = 16 * (parts_ * tiling.part_vectors - tiling.image_vectors +
                                      std::max(tiling.image_vectors, last_read));
    if (tiling.staged_input_bytes > limit_) return false;

    SharedOffsets& shared = tiling.shared;
    SharedLayout block(kCacheLine, limit_);
    block.place<unsigned>(tiling.filter_passes * parts_ * steps_ * tiling.accumulator_tiles *
                          kMatrixTileWords);
    shared.items = block.place<StagedItem>(tiling.image_items);
    shared.tops = block.place<int>(filters_);
    shared.weight_state = block.place<WeightState>(1);
    shared.warpgroups = block.place<unsigned char>(0);
    if (block.end() > limit_) return false;
    tiling.tile_count =
        ceil_divide(problem_.batch, tiling.images) * tiling.row_tiles * ceil_divide(all_spans_, tiling.spans);
    if (tiling.tile_count > kMaxIndex || !set_warpgroup_memory(tiling)) return false;
    tiling.warpgroups = 1;
    return set_warpgroups(tiling);
  }

  // Sets the layout of a warpgroup's shared memory. Returns false if it exceeds the device's.
  bool set_warpgroup_memory(Tiling& tiling) const {
    SharedOffsets& shared = tiling.shared;
    SharedLayout warpgroup(kCacheLine, limit_);
    warpgroup.place<unsigned>(tiling.staged_input_bytes / 4);
    const int64_t stored_elements = set_y_strides(tiling);
    if (stored_elements > limit_) return false;
    tiling.conv_strides = tiling.y_strides;
    if (has_separate_conv_output_) {
      const int64_t result_elements =
          post_pass_ == PostPass::full ? set_conv_strides(tiling) : stored_elements;
      if (result_elements > limit_) return false;
      shared.conv_output =
          warpgroup.place<unsigned char>(result_elements * static_cast<int64_t>(sizeof(float)));
      shared.y_staging = warpgroup.place<unsigned char>(stored_elements * element_bytes_);
    } else {
      shared.conv_output = warpgroup.place<unsigned char>(stored_elements * element_bytes_);
      shared.y_staging = shared.conv_output;
    }
    const int64_t filters_times_folds =
        tiling.accumulator_tiles * kAccumulatorTileColumns / vector_layout_.outputs;
    shared.scales = warpgroup.place<FilterScale>(tiling.filter_passes * filters_times_folds);
    shared.state = warpgroup.place<WarpgroupState>(1);
    if (!set_source_strides(tiling)) return false;
    shared.raw = warpgroup.place<unsigned char>(tiling.raw_bytes);
    if (warpgroup.end() > limit_) return false;
    shared.warpgroup_bytes = static_cast<int>(warpgroup.end());
    return true;
  }

  // Sets the shared memory of tiling.warpgroups warpgroups. Returns false if it exceeds the device's.
  bool set_warpgroups(Tiling& tiling) const {
    const int64_t warpgroup_bytes = tiling.shared.warpgroup_bytes,
                  block_bytes = tiling.shared.warpgroups.bytes;
    // compute-sanitizer assumes that the second 64 vectors that a wgmma reads follow the first 64, wherever
    // they are. This range must therefore lie in the block's memory for the last warpgroup, too.
    const int64_t last_warpgroup_bytes = std::max(warpgroup_bytes, tiling.staged_input_bytes + kWgmmaM * 16);
    tiling.shared_bytes = block_bytes + (tiling.warpgroups - 1) * warpgroup_bytes + last_warpgroup_bytes;
    return tiling.shared_bytes <= limit_;
  }

  // Returns the smallest number of elements, at least `minimum`, that has the same remainder by `alignment`
  // bytes, a power of two, as `reference` elements.
  int64_t aligned_like(int64_t reference, int64_t minimum, int64_t alignment) const {
    return minimum + ((reference - minimum) & (alignment / element_bytes_ - 1));
  }

  // Sets the strides of the raw input that TMA loads. Returns false if it exceeds the device's shared memory.
  bool set_source_strides(Tiling& tiling) const {
    tiling.source_channel_stride = tiling.source_image_stride = tiling.raw_bytes = 0;
    if (!tiling.loads_input_by_tma) return true;
    const int64_t alignment_elements = kAlignment / element_bytes_;
    const int64_t width = problem_.input[2], channels = problem_.channels_per_group();
    const int64_t rows = std::min(tiling.input_rows, problem_.input[1]);
    // The 16-byte units at both ends of a channel hold no element of another channel.
    if (rows * width > limit_) return false;
    tiling.source_channel_stride =
        aligned_like(problem_.input_size(), rows * width + 2 * alignment_elements, kAlignment);
    if (channels * tiling.source_channel_stride > limit_) return false;
    tiling.source_image_stride = aligned_like(problem_.in_channels * problem_.input_size(),
                                              channels * tiling.source_channel_stride, kAlignment);
    // A vector may begin in the last row and end beyond it.
    const int64_t beyond = tiling.vectors_per_row * vector_layout_.pixels;
    tiling.raw_bytes =
        round_up((tiling.images * tiling.source_image_stride + beyond + alignment_elements) * element_bytes_,
                 kAlignment);
    return tiling.raw_bytes <= limit_;
  }

  // Sets the strides of a filter block's data for y. Returns the number of elements that they need, or more
  // than the device's shared memory if they do not fit.
  int64_t set_y_strides(Tiling& tiling) const {
    const int64_t width = problem_.result[2], plane = problem_.result_size();
    const int64_t columns =
        pools_ ? width : std::min<int64_t>(int64_t{tiling.spans} * vector_layout_.outputs, width);
    const int64_t rows = std::min(tiling.y_rows, problem_.result[1]);
    ResultStrides& strides = tiling.y_strides;
    strides.rows_are_contiguous = columns == width;
    strides.planes_are_contiguous = strides.rows_are_contiguous && rows == problem_.result[1];
    const int64_t row = strides.rows_are_contiguous ? width : aligned_like(width, columns, kCacheLine);
    if (row > limit_ || rows * row > limit_) return limit_ + 1;
    const int64_t stored_plane = aligned_like(plane, rows * row, kCacheLine);
    if (tiling.filters_per_pass * stored_plane > limit_) return limit_ + 1;
    const int64_t image =
        aligned_like(problem_.out_channels * plane, tiling.filters_per_pass * stored_plane, kCacheLine);
    strides.row = static_cast<int>(row);
    strides.plane = static_cast<int>(stored_plane);
    strides.image = static_cast<int>(image);
    return tiling.images * image + kCacheLine / element_bytes_ - 1;
  }

  // Sets the strides of a separate Conv output. Returns the same.
  int64_t set_conv_strides(Tiling& tiling) const {
    const int64_t row =
        int64_t{tiling.spans} * vector_layout_.outputs + tiling.spans * vector_layout_.outputs % 2;
    const int64_t rows = int64_t{tiling.rows} * vector_layout_.folds;
    if (row > limit_ || rows * row > limit_ || tiling.filters_per_pass * rows * row > limit_)
      return limit_ + 1;
    ResultStrides& strides = tiling.conv_strides;
    strides.rows_are_contiguous = strides.planes_are_contiguous = false;
    strides.row = static_cast<int>(row);
    strides.plane = static_cast<int>(rows * row);
    strides.image = static_cast<int>(tiling.filters_per_pass * rows * row);
    return int64_t{tiling.images} * strides.image;
  }

  const ConvProblem& problem_;
  const Device& device_;
  const VectorLayout& vector_layout_;
  const LayoutCost cost_;
  const int64_t limit_;  // bytes of shared memory
  const int64_t element_bytes_, filters_, parts_;
  const bool pools_;
  const PostPass post_pass_;
  const bool has_separate_conv_output_;
  const int64_t all_rows_, all_spans_;          // of the output
  const int64_t rows_beyond_, vectors_beyond_;  // of a window, in a plane
  const int64_t planes_, steps_;
  const bool can_load_by_tma_;
};

}  // namespace

void search(const ConvProblem& problem, const Device& device, Candidates<Tiling>& found) {
  for (const VectorLayout& vector_layout : vector_layouts_of(problem, device)) {
    Tiler(problem, device, vector_layout).search(found);
  }
}

double cost_of(const ConvProblem& problem, const Device& device, const Tiling& tiling) {
  const LayoutCost cost(problem, device, tiling.vector_layout);
  return cost.of(tiling, cost.cost_of_tile(tiling));
}

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
