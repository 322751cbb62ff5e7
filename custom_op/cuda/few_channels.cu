// Implicit matrix multiplication on the tensor cores in TF32, for few input channels.
//
// With few channels a convolution reads little, writes much and multiplies little, so it should take as long
// as its output takes to write. What stands in the way is gathering: im2col fetches each input from shared
// memory once per filter tap. Here the depth of the multiplication runs over filter *rows* (c, r), eight at
// a time, one per thread of a tensor-core quad and half, and the taps s of a row follow each other in time:
//
//   for each octet of filter rows (c, r):
//     each thread loads, for its rows, the words that four neighbouring pixels need: taps + 3 of them
//     for each tap s:  sums[pixel][k] += words[pixel + s] * w[k, c, r, s]     (tensor core)
//
// So a 5-wide filter row costs two 16-byte loads where im2col costs twenty 4-byte loads, and a thread ends up
// with four neighbouring outputs, stored 16 bytes at a time. Columns of a strided convolution are staged by
// their remainder, which makes each remainder a filter row of its own with unit stride.
//
// Data flow: persistent blocks; the weights are rounded and laid out once per block; the input of the next
// tile is copied asynchronously (zeros for padding) while the tensor cores work on this one; the rounding to
// TF32 happens in registers. No scratch memory.
//
// Limits: 1-D and 2-D float32 in precision tf32, compute capability 8.0 or newer, filters whose rows have at
// most 11 taps for each remainder of the stride, and a smallest tile that fits into shared memory. It stages
// all channels at once, which is what makes it an algorithm for few of them.

#include "cuda/few_channels.cuh"

#include <algorithm>
#include <array>
#include <limits>
#include <memory>
#include <optional>

#include "cuda/primitives/launch.h"
#include "plan/algorithm.h"

namespace convswap {
namespace {

constexpr int kMostTaps = 11;
constexpr int kMostTiles = 4;  // tiles of 8 filters in a warp's registers
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
           {kTaps, 2, kRagged, reinterpret_cast<const void*>(few_channels_kernel<kTaps, 2, kRagged>)},
           {kTaps, 3, kRagged, reinterpret_cast<const void*>(few_channels_kernel<kTaps, 3, kRagged>)},
           {kTaps, 4, kRagged, reinterpret_cast<const void*>(few_channels_kernel<kTaps, 4, kRagged>)}}};
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

// How the filter is cut into rows for the multiplication's depth.
struct FilterRows {
  int slots;
  int phases;
  int taps;
  bool ragged;
  int reach;  // columns of a phase that the last taps read beyond the pixel's own

  explicit FilterRows(const ConvProblem& problem) {
    const int64_t width = problem.filter[2];
    const int64_t stride = problem.stride[2];
    const int64_t last = (width - 1) * problem.dilation[2];
    const int64_t lines = problem.channels_per_group() * problem.filter[1];
    if (problem.dilation[2] != 1) {
      phases = static_cast<int>(std::min<int64_t>(stride, last + 1));
      taps = 1;
      ragged = false;
      slots = static_cast<int>(lines * width);
    } else {
      phases = static_cast<int>(std::min(stride, width));
      taps = ceil_divide(width, stride);
      ragged = width % stride != 0 && phases > 1;
      slots = static_cast<int>(lines * phases);
    }
    reach = static_cast<int>(last / stride);
  }
};

// What a block does, as the planner weighs it.
struct Tiling {
  Instance instance{};
  int images = 1, rows = 1, quads = 1;
  int filter_blocks = 1, filter_splits = 1;
  int staged_rows = 0, pitch = 0, columns = 0;
  int64_t staged_words = 0;
  int64_t shared_bytes = 0;
  double cost = std::numeric_limits<double>::infinity();
};

class Tiler {
 public:
  Tiler(const ConvProblem& problem, const Device& device)
      : problem_(problem), device_(device), filter_rows_(problem), octets_(ceil_divide(filter_rows_.slots, 8)) {}

  // The cheapest tiling that fits; empty where none does.
  std::optional<Tiling> best() const {
    Tiling best;
    for (const Instance& instance : instances_for(filter_rows_.taps, filter_rows_.ragged)) {
      const int blocks = ceil_divide(problem_.filters_per_group(), 8 * instance.tiles);
      for (int splits = 1; splits <= blocks; splits *= 2) try_quads(instance, blocks, splits, best);
      if (blocks > 1) try_quads(instance, blocks, blocks, best);
    }
    if (best.shared_bytes == 0) return std::nullopt;
    return best;
  }

  const FilterRows& filter_rows() const { return filter_rows_; }
  int octets() const { return octets_; }

 private:
  void try_quads(const Instance& instance, int blocks, int splits, Tiling& best) const {
    const int whole_row = ceil_divide(problem_.output[2], kQuad);
    for (int tiles = 1; tiles <= whole_row; tiles *= 2) {
      Tiling tiling;
      tiling.instance = instance;
      tiling.filter_splits = splits;
      tiling.filter_blocks = ceil_divide(blocks, splits);
      tiling.quads = ceil_divide(whole_row, tiles);
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
    if (tiling.quads != ceil_divide(problem_.output[2], kQuad)) return;
    for (int images = 2; images <= 16 && images <= problem_.batch; ++images) {
      tiling.images = images;
      if (images * tiling.rows * tiling.quads > kMostQuads || !measure(tiling)) return;
      if (tiling.cost < best.cost) best = tiling;
    }
  }

  // Fills in the sizes and the cost; false where the tile does not fit.
  bool measure(Tiling& tiling) const {
    const int64_t staged_rows =
        (tiling.rows - 1) * problem_.stride[1] + (problem_.filter[1] - 1) * problem_.dilation[1] + 1;
    // Whole quads read up to taps + 3 words, in pieces of four.
    tiling.columns = tiling.quads * kQuad + std::max((tiling.instance.taps + 2) / 4 * 4, filter_rows_.reach);
    // Two neighbouring quads of four filter rows then fall into different banks: 8 or 24 modulo 32.
    tiling.pitch = ceil_divide(tiling.columns - 8, 16) * 16 + 8;
    const int64_t lines = tiling.images * problem_.channels_per_group() * staged_rows * filter_rows_.phases;
    tiling.staged_rows = static_cast<int>(std::min<int64_t>(staged_rows, 1 << 20));
    tiling.staged_words = lines * tiling.pitch;
    const int64_t weight_words = 64ll * tiling.filter_blocks * octets_ * tiling.instance.taps * tiling.instance.tiles;
    tiling.shared_bytes = octets_ * kSlotsPerOctet * static_cast<int64_t>(sizeof(FilterRow)) +
                          4 * (weight_words + 2 * tiling.staged_words);
    if (tiling.shared_bytes > device_.shared_memory_per_block) return false;
    tiling.cost = cost(tiling, lines);
    return true;
  }

  // Instructions issued per multiprocessor, roughly: enough to rank tilings, not to predict times.
  double cost(const Tiling& tiling, int64_t lines) const {
    const int taps = tiling.instance.taps;
    const double window = (taps + 6) / 4 + (taps + 3);
    const double unit = octets_ * (4 * window + taps * tiling.instance.tiles * 5.0) + tiling.instance.tiles * 12.0 + 60;
    const int units = ceil_divide(int64_t{tiling.images} * tiling.rows * tiling.quads, kQuadsPerUnit);
    const int rounds = ceil_divide(int64_t{units} * tiling.filter_blocks, kFewChannelsWarps);
    const double staging = 2.0 * lines * ceil_divide(tiling.columns, 32) + 6.0 * lines;
    const double tile = rounds * kFewChannelsWarps * unit + staging + 1000;
    // One resident block leaves the tensor cores idle at its barriers.
    const bool two_fit = 2 * (tiling.shared_bytes + 1024) <= device_.shared_memory_per_multiprocessor;
    const int resident = two_fit ? 2 : 1;
    const int64_t tiles = int64_t{ceil_divide(problem_.batch, tiling.images)} *
                          ceil_divide(problem_.output[1], tiling.rows) *
                          ceil_divide(ceil_divide(problem_.output[2], kQuad), tiling.quads) *
                          tiling.filter_splits * problem_.group;
    return ceil_divide(tiles, int64_t{device_.multiprocessors} * resident) * resident * tile * (two_fit ? 1.0 : 1.3);
  }

  const ConvProblem& problem_;
  const Device& device_;
  FilterRows filter_rows_;
  int octets_;
};

int widest_aligned(int64_t words) { return words % 4 == 0 ? 4 : words % 2 == 0 ? 2 : 1; }

int widest_aligned(const void* pointer) {
  return widest_aligned(static_cast<int64_t>(reinterpret_cast<uintptr_t>(pointer) / sizeof(float)));
}

class FewChannelsPlan final : public Plan {
 public:
  FewChannelsPlan(const ConvProblem& problem, const Device& device) : device_(device.index) {
    const Tiler tiler(problem, device);
    tiling_ = *tiler.best();
    fill_arguments(problem, tiler);
    const DeviceGuard guard(device.index);
    allow_shared_memory(tiling_.instance.kernel, static_cast<size_t>(tiling_.shared_bytes));
    const int resident = std::max(1, resident_blocks(tiling_.instance.kernel, kFewChannelsThreads,
                                                     static_cast<size_t>(tiling_.shared_bytes)));
    const int64_t tiles =
        int64_t{arguments_.image_tiles} * arguments_.bands * arguments_.column_tiles;
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
    arguments.copy_words = std::min(arguments.copy_words, widest_aligned(tensors.x));
    arguments.store_words = std::min(arguments.store_words, widest_aligned(tensors.y));
    void* parameters[] = {&arguments};
    const DeviceGuard guard(device_);
    launch(tiling_.instance.kernel, grid_, kFewChannelsThreads, static_cast<size_t>(tiling_.shared_bytes),
           execution.stream, parameters);
  }

  std::string describe() const override {
    return "tiles of " + std::to_string(tiling_.images) + " images x " + std::to_string(tiling_.rows) +
           " rows x " + std::to_string(tiling_.quads * kQuad) + " columns x " +
           std::to_string(tiling_.filter_blocks * tiling_.instance.tiles * 8) + " filters, " +
           std::to_string(grid_.x) + " x " + std::to_string(grid_.y) + " blocks of " +
           std::to_string(kFewChannelsThreads) + " threads, " + std::to_string(tiling_.shared_bytes) +
           " bytes of shared memory";
  }

 private:
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
    to.column_tiles = ceil_divide(ceil_divide(problem.output[2], kQuad), tiling_.quads);
    to.image_tiles = ceil_divide(problem.batch, tiling_.images);
    to.quads_per_row = FastDivisor(tiling_.quads);
    to.quads_per_image = FastDivisor(tiling_.rows * tiling_.quads);

    to.staged_rows = tiling_.staged_rows;
    to.phases = tiler.filter_rows().phases;
    to.pitch = tiling_.pitch;
    to.columns = tiling_.columns;
    to.staged_words = static_cast<int>(tiling_.staged_words);
    to.slots = tiler.filter_rows().slots;
    to.octets = tiler.octets();
    to.filter_blocks = tiling_.filter_blocks;
    to.filter_splits = tiling_.filter_splits;
    to.copy_words = std::min(widest_aligned(problem.input[2]), widest_aligned(problem.pad_begin[2]));
    to.store_words = widest_aligned(problem.output[2]);
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
             std::to_string(device.compute_capability / 10) + "." + std::to_string(device.compute_capability % 10);
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
