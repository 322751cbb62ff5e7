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
// next tile is copied asynchronously while the tensor cores work on this one. No scratch
// memory.
//
// Limits: 1-D and 2-D float32 in precision tf32, compute capability 8.0 or newer, filters whose rows have at
// most 11 taps for each remainder of the stride, and a smallest tile that fits into shared memory. It stages
// all channels at once, which is what makes it an algorithm for few of them: where they do not fit it takes
// several passes, each of which reads and writes the output again.

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <vector>

#include "cuda/few_channels.cuh"
#include "cuda/few_channels_tiling.h"
#include "cuda/primitives/launch.h"
#include "plan/algorithm.h"

namespace convswap {
namespace {

constexpr int64_t kMostGroups = 65535;  // rows of a grid
constexpr int64_t kMostIndex = 1 << 30;

int64_t ceil_divide(int64_t a, int64_t b) { return (a + b - 1) / b; }

template <int kTaps, bool kRagged>
const void* kernel_of(int tiles) {
  return tiles == 1 ? reinterpret_cast<const void*>(few_channels_kernel<kTaps, 1, kRagged>)
                    : reinterpret_cast<const void*>(few_channels_kernel<kTaps, 2, kRagged>);
}

const void* kernel_of(const FewChannelsTiling& tiling) {
  if (!tiling.ragged) {
    switch (tiling.taps) {
      case 1:
        return kernel_of<1, false>(tiling.tiles);
      case 3:
        return kernel_of<3, false>(tiling.tiles);
      case 5:
        return kernel_of<5, false>(tiling.tiles);
      default:
        return kernel_of<7, false>(tiling.tiles);
    }
  }
  switch (tiling.taps) {
    case 2:
      return kernel_of<2, true>(tiling.tiles);
    case 3:
      return kernel_of<3, true>(tiling.tiles);
    case 4:
      return kernel_of<4, true>(tiling.tiles);
    case 7:
      return kernel_of<7, true>(tiling.tiles);
    default:
      return kernel_of<kFewChannelsMostTaps, true>(tiling.tiles);
  }
}

bool is_aligned(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; }

FewChannelsArguments arguments_of(const ConvProblem& problem, const FewChannelsPass& pass) {
  const FewChannelsTiling& tiling = pass.tiling;
  const auto narrow = [](int64_t value) { return static_cast<int>(value); };
  FewChannelsArguments to{};
  to.batch = narrow(problem.batch);
  to.in_channels = narrow(problem.in_channels);
  to.out_channels = narrow(problem.out_channels);
  to.filters_per_group = narrow(problem.filters_per_group());
  to.channels_per_group = narrow(problem.channels_per_group());
  to.first_channel = narrow(pass.first_channel);
  to.channels = narrow(pass.channels);
  to.accumulates = pass.first_channel > 0;
  to.input_words = problem.batch * problem.in_channels * problem.input_size();
  to.input_height = narrow(problem.input[1]);
  to.input_width = narrow(problem.input[2]);
  to.output_height = narrow(problem.output[1]);
  to.output_width = narrow(problem.output[2]);
  to.filter_height = narrow(problem.filter[1]);
  to.filter_width = narrow(problem.filter[2]);
  to.stride_height = narrow(problem.stride[1]);
  to.stride_width = narrow(problem.stride[2]);
  to.dilation_height = narrow(problem.dilation[1]);
  to.dilation_width = narrow(problem.dilation[2]);
  to.pad_height = narrow(problem.pad_begin[1]);
  to.pad_width = narrow(problem.pad_begin[2]);

  to.tile_images = tiling.images;
  to.tile_rows = tiling.rows;
  to.tile_quads = tiling.quads;
  to.bands = narrow(ceil_divide(problem.output[1], tiling.rows));
  to.column_tiles = narrow(ceil_divide(few_channels_quads_per_row(problem), tiling.quads));
  to.image_tiles = narrow(ceil_divide(problem.batch, tiling.images));
  to.quads_per_row = FastDivisor(tiling.quads);
  to.quads_per_image = FastDivisor(tiling.rows * tiling.quads);

  const FilterRows rows(with_channels(problem, pass.channels));
  to.raw_rows = tiling.raw_rows;
  to.raw_columns = tiling.raw_columns;
  to.raw_words = narrow(tiling.raw_words);
  to.raw_chunks = FastDivisor(tiling.raw_chunks);
  to.raw_rows_divisor = FastDivisor(tiling.raw_rows);
  to.channels_divisor = FastDivisor(to.channels);

  to.pairs_channels = rows.pairs_channels;
  to.row_distance = narrow(rows.row_distance);
  to.planes = narrow(rows.planes);
  to.phases = narrow(rows.phases);
  to.line_words = tiling.line_words;
  to.plane_words = narrow(tiling.plane_words);
  to.column_pairs = FastDivisor(tiling.columns / 2);
  to.lines_per_plane = FastDivisor((to.raw_rows - to.row_distance) * to.phases);
  to.planes_divisor = FastDivisor(to.planes);
  to.phases_divisor = FastDivisor(to.phases);

  to.pairs = narrow(rows.pairs);
  to.steps = narrow(rows.steps());
  to.filter_blocks = tiling.filter_blocks;
  to.filter_splits = tiling.filter_splits;
  to.filter_block_divisor = FastDivisor(tiling.filter_blocks);
  to.stores_quads = problem.output[2] % kQuad == 0;
  return to;
}

// One launch, ready to be repeated.
class Launch {
 public:
  Launch(const ConvProblem& problem, const Device& device, const FewChannelsPass& pass)
      : tiling_(pass.tiling), kernel_(kernel_of(tiling_)), arguments_(arguments_of(problem, pass)) {
    allow_shared_memory(kernel_, device.shared_memory_per_block);
    const int resident = resident_blocks(kernel_, threads(), shared_bytes());
    if (resident == 0)
      throw std::runtime_error("few_channels: a block does not fit on " + device.name +
                               "; ask for another algorithm, such as naive");
    const int64_t tiles = int64_t{arguments_.image_tiles} * arguments_.bands * arguments_.column_tiles;
    const int64_t rows = problem.group * tiling_.filter_splits;
    const int64_t slots = int64_t{device.multiprocessors} * resident;
    grid_ = dim3(static_cast<unsigned>(few_channels_grid_columns(tiles, rows, slots)),
                 static_cast<unsigned>(rows));
  }

  void enqueue(const ConvTensors& tensors, void* stream) const {
    FewChannelsArguments arguments = arguments_;
    arguments.x = static_cast<const float*>(tensors.x);
    arguments.w = static_cast<const float*>(tensors.w);
    arguments.b = arguments.accumulates ? nullptr : static_cast<const float*>(tensors.b);
    arguments.y = static_cast<float*>(tensors.y);
    arguments.copies_16_bytes = is_aligned(tensors.x);
    arguments.stores_quads = arguments.stores_quads && is_aligned(tensors.y);
    void* parameters[] = {&arguments};
    launch(kernel_, grid_, threads(), shared_bytes(), stream, parameters);
  }

  std::string describe() const {
    return "tiles of " + std::to_string(tiling_.images) + " images x " + std::to_string(tiling_.rows) +
           " rows x " + std::to_string(tiling_.quads * kQuad) + " columns x " +
           std::to_string(tiling_.filter_blocks * tiling_.tiles * 16) + " filters, " +
           std::to_string(grid_.x) + " x " + std::to_string(grid_.y) + " blocks of " +
           std::to_string(threads()) + " threads, " + std::to_string(tiling_.shared_bytes) +
           " bytes of shared memory";
  }

 private:
  int threads() const { return 32 * tiling_.warps; }
  size_t shared_bytes() const { return static_cast<size_t>(tiling_.shared_bytes); }

  FewChannelsTiling tiling_;
  const void* kernel_;
  FewChannelsArguments arguments_;
  dim3 grid_;
};

class FewChannelsPlan final : public Plan {
 public:
  FewChannelsPlan(const ConvProblem& problem, const Device& device) : device_(device.index) {
    const DeviceGuard guard(device_);
    for (const FewChannelsPass& pass : few_channels_passes(problem, device)) {
      launches_.emplace_back(problem, device, pass);
    }
  }

  void run(const ConvTensors& tensors, const Execution& execution) const override {
    const DeviceGuard guard(device_);
    for (const Launch& launch : launches_) launch.enqueue(tensors, execution.stream);
  }

  std::string describe() const override {
    const size_t count = launches_.size();
    return (count == 1 ? "" : std::to_string(count) + " passes, each ") + launches_.front().describe();
  }

 private:
  int device_;
  std::vector<Launch> launches_;
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
  static std::string why_too_large(const ConvProblem& problem, const Device& device) {
    if (problem.output_elements() == 0) return "the output is empty";
    if (problem.channels_per_group() == 0) return "the input has no channels";
    if (problem.group > kMostGroups) {
      return "it takes at most " + std::to_string(kMostGroups) + " groups";
    }
    // The kernel's indices inside an image have 32 bits.
    for (const int64_t value :
         {problem.batch, problem.in_channels, problem.out_channels, problem.output_size(),
          problem.input[1] + problem.pad_begin[1] + problem.pad_end[1] + problem.stride[1],
          problem.input[2] + problem.pad_begin[2] + problem.pad_end[2] + problem.stride[2],
          problem.channels_per_group() * problem.filter_size() * 16}) {
      if (value > kMostIndex) return "its indices have 32 bits and the problem needs more";
    }
    const FilterRows rows(problem);
    if (rows.taps > kFewChannelsMostTaps) {
      return "filter rows of " + std::to_string(problem.filter[2]) + " taps at stride " +
             std::to_string(problem.stride[2]) + " are wider than its " +
             std::to_string(kFewChannelsMostTaps);
    }
    if (few_channels_passes(problem, device).empty()) {
      return "its smallest tile, one channel of a filter's reach, does not fit into the " +
             std::to_string(device.shared_memory_per_block) + " bytes of shared memory of " + device.name;
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
