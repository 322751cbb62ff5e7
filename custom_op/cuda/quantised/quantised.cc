// Convolution of quantised data on any card, with dp4a: four products of 8-bit codes and their sum in one
// instruction. The kernels are
//
// - `dense`, for groups of several filters. A word has four channels of a pixel. A block stages the pixels
//   that its tile of outputs reads, as words, and the weights of its filters. A thread computes eight
//   positions of four or eight filters: for a tap it loads a word of each position and of each filter, and
//   multiplies each by each. If the words of all channels do not fit into shared memory, stages of some words
//   follow each other.
// - `depthwise`, for one channel and one filter a group in NHWC. A word has four channels, a thread a strip
//   of outputs of a row. Its pixels are loaded once for all taps of a filter row. A product of one channel is
//   a dp4a whose other three weights are 0.
// - `depthwise_columns`, the same for filters three rows high. The pixels of a column, one below the other,
//   are transposed into a word for each channel, so that a dp4a has the three taps of a filter column.
// - `kernel`, for every problem: one output a thread, which reads every operand through the caches. It takes
//   any layout, every epilogue and every address.
//
// `prepare` writes the weights as words, and for each filter the zero point of x times its weights, which is
// subtracted from each sum: padding has the zero point. Constant weights are prepared once.

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "conv/arithmetic.h"
#include "cuda/host/algorithm_by_tiling.h"
#include "cuda/host/arguments.h"
#include "cuda/host/formats.h"
#include "cuda/host/kernels.h"
#include "cuda/host/launch.h"
#include "cuda/host/text.h"
#include "cuda/quantised/arguments.h"
#include "cuda/quantised/family.h"

namespace convswap {
namespace quantised {
namespace {

constexpr std::string_view kEachOutput = "quantised::kernel", kDense = "quantised::dense",
                           kDepthwise = "quantised::depthwise",
                           kDepthwiseColumns = "quantised::depthwise_columns",
                           kPrepareDense = "quantised::prepare_dense",
                           kPrepareDepthwise = "quantised::prepare_depthwise";
constexpr int64_t kMaxPrepareBlocks = 1 << 16;

std::vector<std::string> all_instances() {
  std::vector<std::string> names = instance_names(kDepthwise, kCodes, kDepthwiseInstances);
  for (const std::string_view kernel : {kEachOutput, kPrepareDense, kPrepareDepthwise}) {
    for (std::string& name : instance_names(kernel, kCodes)) names.push_back(std::move(name));
  }
  for (const std::string_view codes : kCodes) {
    for (const DepthwiseInstance& columns : kColumnInstances) {
      names.push_back(instance_name(kDepthwiseColumns, codes, columns.column_arguments()));
    }
    for (const int filters : kDenseFilters) names.push_back(instance_name(kDense, codes, joined(filters)));
  }
  return names;
}

const KernelRegistration registration({.header = "cuda/quantised/kernel.cuh", .instances = all_instances()});

std::string each_output_name(const ConvProblem& problem) {
  return instance_name(kEachOutput, element_name(problem.type));
}

std::string kernel_name(const ConvProblem& problem, const Tiling& tiling) {
  const std::string_view type = element_name(problem.type);
  switch (tiling.kernel) {
    case Kernel::dense:
      return instance_name(kDense, type, joined(tiling.filters));
    case Kernel::depthwise:
      return instance_name(kDepthwise, type, tiling.depthwise.arguments());
    case Kernel::depthwise_columns:
      return instance_name(kDepthwiseColumns, type, tiling.depthwise.column_arguments());
    case Kernel::each_output:
      break;
  }
  return each_output_name(problem);
}

std::string prepare_name(const ConvProblem& problem, const Tiling& tiling) {
  return instance_name(tiling.kernel == Kernel::dense ? kPrepareDense : kPrepareDepthwise,
                       element_name(problem.type));
}

Sizes sizes_of(const ConvProblem& problem) {
  Sizes sizes{};
  const auto set = [](const Axes& from, int (&to)[3]) { std::ranges::transform(from, to, narrow); };
  set(problem.input, sizes.input), set(problem.filter, sizes.filter), set(problem.stride, sizes.stride);
  set(problem.dilation, sizes.dilation), set(problem.pad_begin, sizes.pad);
  return sizes;
}

Dense dense_of(const ConvProblem& problem, const Tiling& tiling) {
  const auto divisor = [](int64_t value) { return FastDivisor(narrow(value)); };
  Dense to{};
  const int64_t words = words_of(problem), blocks = filter_blocks_of(problem, tiling);
  to.filter_blocks = divisor(problem.group * blocks), to.blocks_per_group = divisor(blocks);
  to.column_tiles = divisor(ceil_divide(problem.output[2], tiling.columns));
  to.row_tiles = divisor(ceil_divide(problem.output[1], tiling.rows));
  to.output_depth = divisor(problem.output[0]);
  to.tile_columns = divisor(tiling.columns), to.tile_rows = narrow(tiling.rows);
  to.filter_lanes = divisor(tiling.filter_lanes), to.block_filters = tiling.block_filters();
  to.words = narrow(words), to.stage_words = narrow(tiling.stage_words);
  to.staged_rows = divisor(staged_extent(problem, 1, tiling.rows));
  to.staged_columns = divisor(staged_extent(problem, 2, tiling.columns));
  const int64_t last = words % tiling.stage_words;
  to.staged_words = divisor(tiling.stage_words),
  to.last_words = divisor(last == 0 ? tiling.stage_words : last);
  to.x_words = tiling.x_words, to.w_words = tiling.w_words;
  return to;
}

Depthwise depthwise_of(const ConvProblem& problem, const Tiling& tiling) {
  Depthwise to{};
  to.words = FastDivisor(narrow(problem.in_channels / kWordChannels));
  to.thread_words = FastDivisor(narrow(problem.in_channels / tiling.thread_channels()));
  to.strips = FastDivisor(narrow(ceil_divide(problem.output[2], int64_t{tiling.depthwise.outputs})));
  to.strip_rows = narrow(strip_rows_of(problem, tiling));
  to.output_depth = FastDivisor(narrow(problem.output[0]));
  to.strip_rows_of_height =
      FastDivisor(narrow(ceil_divide(problem.output[1], int64_t{tiling.depthwise_rows()})));
  to.output_height = narrow(problem.output[1]), to.output_width = narrow(problem.output[2]);
  to.has_columns = tiling.kernel == Kernel::depthwise_columns;
  return to;
}

Arguments<void> arguments_of(const ConvProblem& problem, const Tiling& tiling) {
  Arguments<void> to{};
  to.conv = naive_quantised_conv_of(problem);
  to.outputs = problem.result_elements();
  to.requantisation = requantisation_of(problem);
  if (tiling.kernel == Kernel::each_output) return to;
  to.sizes = sizes_of(problem);
  to.taps = narrow(problem.filter[1] * problem.filter[2]);
  if (tiling.kernel == Kernel::dense) {
    to.dense = dense_of(problem, tiling);
    to.prepared_filters = narrow(problem.group * filter_blocks_of(problem, tiling) * tiling.block_filters());
    to.prepared_words = to.prepared_filters * words_of(problem) * problem.filter_size();
  } else {
    to.depthwise = depthwise_of(problem, tiling);
    to.prepared_filters = narrow(problem.out_channels);
    to.prepared_words = problem.out_channels / kWordChannels * problem.filter_size();
    // A word of three rows for each channel, instead of a word of channels for each row.
    if (to.depthwise.has_columns) to.prepared_words = to.prepared_words / kColumnTaps * kWordChannels;
  }
  return to;
}

bool is_aligned_to(const void* data, int64_t bytes) {
  return reinterpret_cast<std::uintptr_t>(data) % static_cast<std::uintptr_t>(bytes) == 0;
}

class QuantisedPlan final : public Plan {
 public:
  static std::vector<std::string> kernel_names(const ConvProblem& problem, const Tiling& tiling) {
    if (tiling.kernel == Kernel::each_output) return {each_output_name(problem)};
    std::vector<std::string> names{kernel_name(problem, tiling), prepare_name(problem, tiling)};
    if (tiling.is_depthwise()) names.push_back(each_output_name(problem));
    return names;
  }

  QuantisedPlan(const ConvProblem& problem, const Device& device, const Tiling& tiling)
      : problem_(problem), device_(device.index), tiling_(tiling), arguments_(arguments_of(problem, tiling)) {
    const DeviceGuard guard(device_);
    launch_ = launch_of(kernel_name(problem, tiling), device, tiling.blocks, tiling.threads);
    launch_.shared_bytes = static_cast<std::size_t>(tiling.shared_bytes);
    if (tiling.kernel == Kernel::each_output) return;
    const int64_t prepared = std::max<int64_t>(arguments_.prepared_words, arguments_.prepared_filters);
    prepare_ = launch_of(prepare_name(problem, tiling), device,
                         std::min(kMaxPrepareBlocks, ceil_divide(prepared, int64_t{kPrepareThreads})),
                         kPrepareThreads);
    if (tiling.is_depthwise()) {
      const int64_t blocks = std::min<int64_t>(1 << 20, ceil_divide(arguments_.outputs, int64_t{kThreads}));
      each_output_ = launch_of(each_output_name(problem), device, blocks, kThreads);
    }
  }

  PreparedForm prepared_form() const override {
    if (tiling_.kernel == Kernel::each_output) return {};
    const auto bytes =
        static_cast<std::size_t>(corrections_offset() + arguments_.prepared_filters * int64_t{sizeof(int)});
    // The corrections depend on the zero point.
    const int zero_point = problem_.quantization->x_zero_point;
    if (tiling_.is_depthwise()) {
      return {bytes,
              joined("quantised depthwise ", arguments_.depthwise.has_columns ? "columns " : "", zero_point)};
    }
    return {bytes, joined("quantised dense ", tiling_.block_filters(), " ", problem_.group, " ", zero_point)};
  }

  void prepare(const void* weights, void* prepared, void* stream) const override {
    Arguments<void> arguments = arguments_;
    arguments.conv.w = static_cast<const Int8*>(weights);
    set_prepared(prepared, arguments);
    const DeviceGuard guard(device_);
    void* parameters[] = {&arguments};
    enqueue(prepare_, stream, parameters);
  }

  void run(const ConvTensors& tensors, const Execution& execution) const override {
    Arguments<void> arguments = arguments_;
    static_cast<Tensors<void>&>(arguments) = tensors_of(tensors, execution);
    bind_tensors(tensors, arguments.conv);
    void* parameters[] = {&arguments};
    const DeviceGuard guard(device_);
    if (tiling_.is_depthwise() && !is_aligned_to(tensors.x, tiling_.thread_channels())) {
      enqueue(each_output_, execution.stream, parameters);
      return;
    }
    if (tiling_.kernel != Kernel::each_output) {
      set_prepared(const_cast<void*>(execution.prepared_weights), arguments);
      set_vectors(tensors, arguments);
    }
    enqueue(launch_, execution.stream, parameters);
  }

  std::vector<KernelFacts> kernels() const override {
    const DeviceGuard guard(device_);
    return {kernel_facts("quantised", launch_)};
  }

  std::string describe() const override {
    const int64_t blocks = launch_.grid.x;
    switch (tiling_.kernel) {
      case Kernel::dense:
        return joined("tiles of ", tiling_.rows, " x ", tiling_.columns, " outputs x ",
                      tiling_.block_filters(), " filters, ", kPositions, " outputs x ", tiling_.filters,
                      " filters a thread, ", blocks, " blocks of ", tiling_.threads, " threads");
      case Kernel::depthwise:
      case Kernel::depthwise_columns:
        return joined("strips of ", tiling_.depthwise_rows(), " x ", tiling_.depthwise.outputs, " outputs x ",
                      tiling_.thread_channels(), " channels a thread, ", blocks, " blocks of ", kThreads,
                      " threads");
      case Kernel::each_output:
        break;
    }
    return joined(blocks, " blocks of ", kThreads, " threads, one output each");
  }

 private:
  static Launch launch_of(const std::string& kernel, const Device& device, int64_t blocks, int threads) {
    Launch launch;
    launch.kernel = find_kernel(kernel, device, sizeof(Arguments<void>));
    launch.grid.x = static_cast<unsigned>(blocks);
    launch.block.x = static_cast<unsigned>(threads);
    launch.start = earliest_start(launch.kernel);
    return launch;
  }

  int64_t corrections_offset() const {
    return arguments_.prepared_words * static_cast<int64_t>(sizeof(unsigned));
  }

  void set_prepared(void* prepared, Arguments<void>& arguments) const {
    arguments.prepared_weights = static_cast<unsigned*>(prepared);
    arguments.corrections =
        reinterpret_cast<int*>(static_cast<unsigned char*>(prepared) + corrections_offset());
  }

  // Sets whether the kernel loads and stores words of codes.
  void set_vectors(const ConvTensors& tensors, Arguments<void>& arguments) const {
    const int64_t filters = tiling_.kernel == Kernel::dense ? tiling_.filters : tiling_.thread_channels();
    const bool has_vectors = problem_.filters_per_group() % filters == 0 || problem_.is_depthwise();
    const auto is_vector = [&](Layout layout, const void* data) {
      return has_vectors && layout == Layout::nhwc && is_aligned_to(data, filters);
    };
    arguments.requantisation.has_y_vectors = is_vector(problem_.layouts.output, tensors.y);
    arguments.requantisation.has_z_vectors = is_vector(problem_.layouts.residual, tensors.z);
    arguments.dense.has_x_words = problem_.layouts.input == Layout::nhwc &&
                                  problem_.channels_per_group() % kWordChannels == 0 &&
                                  is_aligned_to(tensors.x, kWordChannels);
  }

  ConvProblem problem_;
  int device_;
  Tiling tiling_;
  Arguments<void> arguments_;
  Launch launch_, prepare_, each_output_;
};

class Quantised final : public AlgorithmByTiling<QuantisedPlan, best_of<search>, all_of<search>> {
 public:
  std::string_view name() const override { return "quantised"; }
  bool takes_layouts(const ConvProblem&) const override { return true; }
  bool takes_codes() const override { return true; }

 private:
  std::string why_not_at_all(const ConvProblem& problem, const Device&) const override {
    return problem.is_quantised() ? "" : "it takes int8 and uint8 codes";
  }
};

}  // namespace
}  // namespace quantised

const Algorithm& cuda_quantised() {
  static const quantised::Quantised algorithm;
  return algorithm;
}

}  // namespace convswap
