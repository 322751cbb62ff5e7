// Implicit matrix multiplication on the tensor cores in TF32, for few input channels.
//
// With few channels a convolution reads little, writes much and multiplies little, so it should take as long
// as its output takes to write. What stands in the way is everything around the multiplication: im2col
// fetches each input from shared memory once per filter tap, computes an address for each fetch and rounds it
// again. Here filters are the rows of the product, pixels its columns, and the depth runs over *pairs of
// filter rows* (c, r), four pairs at a time, while the taps s of a row follow each other in time:
//
//   once per tile:             paired[c, h, column] = (round x[c, h, column], round x[c', h', column])
//   for each four pairs:       each thread loads the taps + 3 columns that four neighbouring pixels need
//     for each tap s:          sums[k, pixel] += w[k, pair, s] * columns[pixel + s]     (tensor core)
//
// (c', h') is the next channel, or of a single channel a row further down. A thread's two operands then lie
// in two neighbouring registers, where the 16-byte loads have put them: the inner loop is loads and
// tensor-core instructions and nothing else. Four neighbouring outputs end up in one thread, and go out 16
// bytes at a time where rows are aligned, else through shared memory in runs of 32. Columns of a strided
// convolution are staged by their remainder, which makes each remainder a filter row of its own with unit
// stride.
//
// Data flow: persistent blocks; the weights are rounded and laid out once per block; the raw input of the
// next tile is copied asynchronously (zeros for padding) while the tensor cores work on this one. No scratch
// memory.
//
// Limits: 1-D and 2-D float32 in precision tf32, compute capability 8.0 or newer, filters whose rows have at
// most 11 taps for each remainder of the stride, and a smallest tile that fits into shared memory. It stages
// all channels at once, which is what makes it an algorithm for few of them.

#include <algorithm>
#include <array>
#include <limits>
#include <memory>
#include <optional>

#include "cuda/few_channels.cuh"
#include "cuda/primitives/launch.h"
#include "plan/algorithm.h"

namespace convswap {
namespace {

constexpr int kMostTaps = 11;
constexpr int kMostTiles = 2;  // tiles of 16 filters in a warp's registers
constexpr int kMostQuads = 1 << 14;
constexpr int kMostGridRows = 65535;

int ceil_divide(int64_t a, int64_t b) { return static_cast<int>((a + b - 1) / b); }

// One instantiation of the kernel. Ragged ones also serve filter rows shorter than their taps.
struct Instance {
  int taps;
  int tiles;
  bool ragged;
  const void* kernel;
};

template <int kTaps, bool kRagged>
std::array<Instance, kMostTiles> instances() {
  return {{{kTaps, 1, kRagged, reinterpret_cast<const void*>(few_channels_kernel<kTaps, 1, kRagged>)},
           {kTaps, 2, kRagged, reinterpret_cast<const void*>(few_channels_kernel<kTaps, 2, kRagged>)}}};
}

// Filter rows with the common odd widths have kernels of their own; the others take the next larger ragged
// one. Every instance costs compile time and size.
std::array<Instance, kMostTiles> instances_for(int taps, bool ragged) {
  if (!ragged) {
    if (taps == 1) return instances<1, false>();
    if (taps == 3) return instances<3, false>();
    if (taps == 5) return instances<5, false>();
    if (taps == 7) return instances<7, false>();
  }
  if (taps <= 2) return instances<2, true>();
  if (taps <= 4) return instances<4, true>();
  if (taps <= 7) return instances<7, true>();
  return instances<kMostTaps, true>();
}

// How the filter is cut into rows, and the rows paired, for the multiplication's depth.
struct FilterRows {
  int phases;
  int taps;
  bool ragged;
  int reach;  // columns of a phase that the last taps read beyond the pixel's own
  bool pairs_channels;
  int row_distance;  // input rows from the first of a pair to its second; 0 where channels are paired
  int planes;
  int pairs;

  explicit FilterRows(const ConvProblem& problem) {
    const int64_t width = problem.filter[2];
    const int64_t stride = problem.stride[2];
    const int64_t last = (width - 1) * problem.dilation[2];
    const bool single_taps = problem.dilation[2] != 1;
    phases = static_cast<int>(std::min(stride, last + 1));
    taps = single_taps ? 1 : ceil_divide(width, stride);
    ragged = !single_taps && phases > 1 && width % stride != 0;
    reach = static_cast<int>(last / stride);

    const int per_line = static_cast<int>(single_taps ? width : phases);
    const int channels = static_cast<int>(problem.channels_per_group());
    const int rows = static_cast<int>(problem.filter[1]);
    const int by_channels = ceil_divide(channels, 2) * rows * per_line;
    const int by_rows = channels * ceil_divide(rows, 2) * per_line;
    // Paired rows are staged twice, paired channels once.
    pairs_channels = channels > 1 && by_channels <= by_rows;
    pairs = pairs_channels ? by_channels : by_rows;
    planes = pairs_channels ? ceil_divide(channels, 2) : channels;
    row_distance = pairs_channels ? 0 : static_cast<int>(rows / 2 * problem.dilation[1]);
  }

  int steps() const { return ceil_divide(pairs, kPairsPerStep); }
};

// What a block does, as the planner weighs it.
struct Tiling {
  Instance instance{};
  int warps = 8;
  int images = 1, rows = 1, quads = 1;
  int filter_blocks = 1, filter_splits = 1;
  int raw_rows = 0, raw_columns = 0, raw_chunks = 0, columns = 0, line_words = 0;
  int64_t raw_words = 0, plane_words = 0;
  int64_t shared_bytes = 0;
  double cost = std::numeric_limits<double>::infinity();
};

class Tiler {
 public:
  Tiler(const ConvProblem& problem, const Device& device)
      : problem_(problem), device_(device), filter_rows_(problem) {
    quads_per_row_ = ceil_divide(problem.output[2], kQuad);
  }

  // The cheapest tiling that fits; empty where none does.
  std::optional<Tiling> best() const {
    Tiling best;
    for (const Instance& instance : instances_for(filter_rows_.taps, filter_rows_.ragged)) {
      const int blocks = ceil_divide(problem_.filters_per_group(), 16 * instance.tiles);
      for (const int warps : {8, 16}) {
        for (int splits = 1; splits < blocks; splits *= 2) try_quads(instance, warps, blocks, splits, best);
        try_quads(instance, warps, blocks, blocks, best);
      }
    }
    if (best.shared_bytes == 0) return std::nullopt;
    return best;
  }

  const FilterRows& filter_rows() const { return filter_rows_; }
  int quads_per_row() const { return quads_per_row_; }

 private:
  void try_quads(const Instance& instance, int warps, int blocks, int splits, Tiling& best) const {
    for (int tiles = 1; tiles <= quads_per_row_; tiles *= 2) {
      Tiling tiling;
      tiling.instance = instance;
      tiling.warps = warps;
      tiling.filter_splits = splits;
      tiling.filter_blocks = ceil_divide(blocks, splits);
      tiling.quads = ceil_divide(quads_per_row_, tiles);
      try_rows(tiling, best);
    }
  }

  void try_rows(Tiling tiling, Tiling& best) const {
    const int64_t most = std::min<int64_t>(problem_.output[1], kMostQuads / tiling.quads);
    for (int rows = 1; rows <= most; ++rows) {
      tiling.rows = rows;
      tiling.images = 1;
      if (!measure(tiling)) return;
      if (tiling.cost < best.cost) best = tiling;
      if (rows == problem_.output[1]) try_images(tiling, best);
    }
  }

  void try_images(Tiling tiling, Tiling& best) const {
    if (tiling.quads != quads_per_row_) return;
    for (int images = 2; images <= 16 && images <= problem_.batch; ++images) {
      tiling.images = images;
      if (images * tiling.rows * tiling.quads > kMostQuads || !measure(tiling)) return;
      if (tiling.cost < best.cost) best = tiling;
    }
  }

  // Fills in the sizes and the cost; false where the tile does not fit.
  bool measure(Tiling& tiling) const {
    const int64_t raw_rows =
        (tiling.rows - 1) * problem_.stride[1] + (problem_.filter[1] - 1) * problem_.dilation[1] + 1;
    // Whole quads read up to taps + 3 columns, in pieces of two.
    const int beyond = std::max((tiling.instance.taps + 4) / 2 * 2 - kQuad, filter_rows_.reach);
    tiling.columns = ceil_divide(tiling.quads * kQuad + beyond, 4) * 4;
    tiling.line_words = 2 * tiling.columns + 4;  // 4 modulo 8, see quad_of_column
    tiling.raw_rows = static_cast<int>(std::min<int64_t>(raw_rows, 1 << 20));
    const int64_t raw_columns = tiling.columns * problem_.stride[2];
    tiling.raw_columns = static_cast<int>(std::min<int64_t>(raw_columns, 1 << 20));
    // A row may start anywhere within its first 16 bytes.
    tiling.raw_chunks = ceil_divide(std::min<int64_t>(tiling.raw_columns, problem_.input[2]) + 3, 4);
    const int64_t lines = (raw_rows - filter_rows_.row_distance) * filter_rows_.phases;
    // The first line of a plane continues the banks where the last filter row of the one before it ended.
    const int64_t wanted = problem_.filter[1] * filter_rows_.phases * tiling.line_words % 32;
    tiling.plane_words = lines * tiling.line_words;
    tiling.plane_words += (wanted - tiling.plane_words % 32 + 32) % 32;
    tiling.raw_words = tiling.images * problem_.channels_per_group() * raw_rows * tiling.raw_chunks * 4;
    const int64_t weight_words =
        128ll * tiling.filter_blocks * filter_rows_.steps() * tiling.instance.taps * tiling.instance.tiles;
    tiling.shared_bytes =
        filter_rows_.steps() * kPairsPerStep * static_cast<int64_t>(sizeof(FilterPair)) +
        4 * (weight_words + tiling.images * filter_rows_.planes * tiling.plane_words + tiling.raw_words +
             tiling.warps * kStagedWords) +
        tiling.images * filter_rows_.planes * lines * static_cast<int64_t>(sizeof(LineSource));
    if (tiling.shared_bytes > device_.shared_memory_per_block) return false;
    tiling.cost = cost(tiling);
    return true;
  }

  // Cycles of a multiprocessor, roughly: enough to rank tilings, not to predict times.
  double cost(const Tiling& tiling) const {
    const int tiles = tiling.instance.tiles;
    const double multiply = filter_rows_.steps() * (tiling.instance.taps * tiles * 12.0 + 20.0);
    const double store = (problem_.output[2] % kQuad == 0 ? 60.0 : 160.0) * tiles + 100;
    const int units = ceil_divide(int64_t{tiling.images} * tiling.rows * tiling.quads, kQuadsPerUnit);
    const int rounds = ceil_divide(int64_t{units} * tiling.filter_blocks, tiling.warps);
    const double staging = tiling.images * filter_rows_.planes * tiling.plane_words / 128.0 * 12.0;
    const double tile = rounds * tiling.warps * (multiply + store) + staging + 1500;
    // One resident block leaves the tensor cores idle at its barriers.
    const int resident = std::clamp<int>(
        static_cast<int>(device_.shared_memory_per_multiprocessor / (tiling.shared_bytes + 1024)), 1,
        16 / tiling.warps);
    const int64_t blocks = int64_t{ceil_divide(problem_.batch, tiling.images)} *
                           ceil_divide(problem_.output[1], tiling.rows) *
                           ceil_divide(quads_per_row_, tiling.quads) * tiling.filter_splits * problem_.group;
    const double idle = resident * tiling.warps < 16 ? 1.6 : resident == 1 ? 1.2 : 1.0;
    return ceil_divide(blocks, int64_t{device_.multiprocessors} * resident) * resident * tile * idle;
  }

  const ConvProblem& problem_;
  const Device& device_;
  FilterRows filter_rows_;
  int quads_per_row_ = 0;
};

bool is_aligned(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; }

class FewChannelsPlan final : public Plan {
 public:
  FewChannelsPlan(const ConvProblem& problem, const Device& device) : device_(device.index) {
    const Tiler tiler(problem, device);
    tiling_ = *tiler.best();
    fill_arguments(problem, tiler);
    const DeviceGuard guard(device.index);
    allow_shared_memory(tiling_.instance.kernel, device.shared_memory_per_block);
    const int resident = std::max(
        1, resident_blocks(tiling_.instance.kernel, threads(), static_cast<size_t>(tiling_.shared_bytes)));
    const int64_t tiles = int64_t{arguments_.image_tiles} * arguments_.bands * arguments_.column_tiles;
    const int64_t rows = problem.group * tiling_.filter_splits;
    // Every resident block takes the same number of tiles, to within one.
    const int64_t columns = std::max<int64_t>(1, int64_t{device.multiprocessors} * resident / rows);
    const int64_t rounds = ceil_divide(tiles, columns);
    grid_ = dim3(ceil_divide(tiles, rounds), static_cast<unsigned>(rows));
  }

  void run(const ConvTensors& tensors, const Execution& execution) const override {
    FewChannelsArguments arguments = arguments_;
    arguments.x = static_cast<const float*>(tensors.x);
    arguments.w = static_cast<const float*>(tensors.w);
    arguments.b = static_cast<const float*>(tensors.b);
    arguments.y = static_cast<float*>(tensors.y);
    arguments.copies_16_bytes = is_aligned(tensors.x);
    arguments.stores_quads = arguments.stores_quads && is_aligned(tensors.y);
    void* parameters[] = {&arguments};
    const DeviceGuard guard(device_);
    launch(tiling_.instance.kernel, grid_, threads(), static_cast<size_t>(tiling_.shared_bytes),
           execution.stream, parameters);
  }

  std::string describe() const override {
    return "tiles of " + std::to_string(tiling_.images) + " images x " + std::to_string(tiling_.rows) +
           " rows x " + std::to_string(tiling_.quads * kQuad) + " columns x " +
           std::to_string(tiling_.filter_blocks * tiling_.instance.tiles * 16) + " filters, " +
           std::to_string(grid_.x) + " x " + std::to_string(grid_.y) + " blocks of " +
           std::to_string(threads()) + " threads, " + std::to_string(tiling_.shared_bytes) +
           " bytes of shared memory";
  }

 private:
  int threads() const { return 32 * tiling_.warps; }

  void fill_arguments(const ConvProblem& problem, const Tiler& tiler) {
    FewChannelsArguments& to = arguments_;
    to.batch = static_cast<int>(problem.batch);
    to.in_channels = static_cast<int>(problem.in_channels);
    to.out_channels = static_cast<int>(problem.out_channels);
    to.channels_per_group = static_cast<int>(problem.channels_per_group());
    to.filters_per_group = static_cast<int>(problem.filters_per_group());
    to.input_height = static_cast<int>(problem.input[1]);
    to.input_width = static_cast<int>(problem.input[2]);
    to.output_height = static_cast<int>(problem.output[1]);
    to.output_width = static_cast<int>(problem.output[2]);
    to.filter_height = static_cast<int>(problem.filter[1]);
    to.filter_width = static_cast<int>(problem.filter[2]);
    to.stride_height = static_cast<int>(problem.stride[1]);
    to.stride_width = static_cast<int>(problem.stride[2]);
    to.dilation_height = static_cast<int>(problem.dilation[1]);
    to.dilation_width = static_cast<int>(problem.dilation[2]);
    to.pad_height = static_cast<int>(problem.pad_begin[1]);
    to.pad_width = static_cast<int>(problem.pad_begin[2]);

    to.tile_images = tiling_.images;
    to.tile_rows = tiling_.rows;
    to.tile_quads = tiling_.quads;
    to.bands = ceil_divide(problem.output[1], tiling_.rows);
    to.column_tiles = ceil_divide(tiler.quads_per_row(), tiling_.quads);
    to.image_tiles = ceil_divide(problem.batch, tiling_.images);
    to.quads_per_row = FastDivisor(tiling_.quads);
    to.quads_per_image = FastDivisor(tiling_.rows * tiling_.quads);

    const FilterRows& rows = tiler.filter_rows();
    to.raw_rows = tiling_.raw_rows;
    to.raw_columns = tiling_.raw_columns;
    to.raw_words = static_cast<int>(tiling_.raw_words);
    to.raw_chunks = FastDivisor(tiling_.raw_chunks);
    to.raw_rows_divisor = FastDivisor(tiling_.raw_rows);
    to.channels_divisor = FastDivisor(to.channels_per_group);

    to.pairs_channels = rows.pairs_channels;
    to.row_distance = rows.row_distance;
    to.planes = rows.planes;
    to.phases = rows.phases;
    to.columns = tiling_.columns;
    to.line_words = tiling_.line_words;
    to.plane_words = static_cast<int>(tiling_.plane_words);
    to.column_pairs = FastDivisor(tiling_.columns / 2);
    to.lines_per_plane = FastDivisor((tiling_.raw_rows - rows.row_distance) * rows.phases);
    to.planes_divisor = FastDivisor(rows.planes);
    to.phases_divisor = FastDivisor(rows.phases);

    to.pairs = rows.pairs;
    to.steps = rows.steps();
    to.filter_blocks = tiling_.filter_blocks;
    to.filter_splits = tiling_.filter_splits;
    to.filter_block_divisor = FastDivisor(tiling_.filter_blocks);
    to.stores_quads = problem.output[2] % kQuad == 0;
  }

  int device_;
  Tiling tiling_;
  FewChannelsArguments arguments_{};
  dim3 grid_;
};

class FewChannels final : public Algorithm {
 public:
  std::string_view name() const override { return "few_channels"; }
  DeviceKind device_kind() const override { return DeviceKind::cuda; }

  std::string why_not(const ConvProblem& problem, const Device& device) const override {
    if (problem.type != ElementType::float32) {
      return "it computes float32 and the data are " + std::string(name_of(problem.type));
    }
    if (problem.precision != Precision::tf32) return "it computes in TF32 and precision ieee was asked for";
    if (device.compute_capability < 80) {
      return "it needs compute capability 8.0 or newer for TF32, and " + device.name + " has " +
             std::to_string(device.compute_capability / 10) + "." +
             std::to_string(device.compute_capability % 10);
    }
    if (problem.spatial_rank > 2) return "it computes 1-D and 2-D data and these have 3 spatial axes";
    return why_too_large(problem, device);
  }

  std::unique_ptr<Plan> make_plan(const ConvProblem& problem, const Device& device) const override {
    return std::make_unique<FewChannelsPlan>(problem, device);
  }

 private:
  // The kernel's indices inside an image, and its tile numbers, are 32 bits wide.
  static std::string why_too_large(const ConvProblem& problem, const Device& device) {
    constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
    if (problem.channels_per_group() == 0) return "the input has no channels";
    for (const int64_t value :
         {problem.batch * problem.output[1] * problem.output[2], problem.in_channels, problem.out_channels,
          problem.input[1] + problem.pad_begin[1] + problem.pad_end[1] + problem.stride[1],
          problem.input[2] + problem.pad_begin[2] + problem.pad_end[2] + problem.stride[2],
          problem.channels_per_group() * problem.filter_size() * 16}) {
      if (value > kMost) return "its indices have 32 bits and the problem needs more";
    }
    const FilterRows rows(problem);
    if (rows.taps > kMostTaps) {
      return "filter rows of " + std::to_string(problem.filter[2]) + " taps at stride " +
             std::to_string(problem.stride[2]) + " are wider than its " + std::to_string(kMostTaps);
    }
    const std::optional<Tiling> tiling = Tiler(problem, device).best();
    if (!tiling) {
      return "its smallest tile, all " + std::to_string(problem.channels_per_group()) +
             " channels of a filter's reach, does not fit into the " +
             std::to_string(device.shared_memory_per_block) + " bytes of shared memory of " + device.name;
    }
    if (problem.group * tiling->filter_splits > kMostGridRows) {
      return "it takes at most " + std::to_string(kMostGridRows) + " groups";
    }
    return {};
  }
};

}  // namespace

const Algorithm& cuda_few_channels() {
  static const FewChannels algorithm;
  return algorithm;
}

}  // namespace convswap
