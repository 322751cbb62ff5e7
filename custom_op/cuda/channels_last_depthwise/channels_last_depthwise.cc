// Depthwise convolution of channels-last tensors: x, y and the residual are NHWC. Each filter sees one
// channel, so tensor cores would reuse no operand; memory bandwidth is the limit.
//
// A thread computes a strip of four adjacent columns of y. For filters of 3x3, 5x5 and 7x7 taps, `sliding`
// does it for four bytes of channels, down a run of rows. The threads of a run copy the rows of x to a ring
// of rows in shared memory (cp.async), several rows ahead. A thread has all taps in registers, and adds the
// pixels of a row to the sums of every row of y that they contribute to. So a pixel is read and converted
// once for a strip, and a tap once for a run. It needs compute capability 8.0.
//
// `row_by_row` takes filters of any other shape, dilations, and 1-D and 3-D data, for 16 bytes of channels.
// For each filter row it loads the pixels that the strip reads, and the row's weights. Pixels that several
// strips read come from the multiprocessor's L1 cache.
//
// A block's threads are for neighbouring channels, strips and runs.
//
// `prepare` writes the weights as (taps, channels), so that a thread loads those of its channels together;
// constant weights are prepared once. `row_by_row` without vectors computes one filter per thread. It takes
// channels that are no whole number of vectors, several filters per channel, and tensors at addresses that
// are no multiple of a vector's bytes.
//
// Accumulators are float32 in precisions tf32 and ieee; only the result is rounded.
//
// Limits: float32, float16 and bfloat16; one channel per group, with any number of filters. A pool is a
// second kernel. Padding is multiplied as zeros where a test would cost more, so an infinite weight over it
// may give NaN.

#include <cstdint>
#include <string>
#include <vector>

#include "conv/arithmetic.h"
#include "cuda/channels_last_depthwise/arguments.h"
#include "cuda/channels_last_depthwise/family.h"
#include "cuda/host/algorithm_by_tiling.h"
#include "cuda/host/arguments.h"
#include "cuda/host/formats.h"
#include "cuda/host/kernels.h"
#include "cuda/host/launch.h"
#include "cuda/host/limits.h"
#include "cuda/host/text.h"

namespace convswap {
namespace channels_last_depthwise {
namespace {

constexpr std::string_view kPrepare = "channels_last_depthwise::prepare";

std::vector<std::string> instances_of(bool slides) {
  std::vector<std::string> names;
  for (const std::string_view type : kElementsWithoutFloat64) {
    if (!slides) names.push_back(instance_name(kPrepare, type));
    for (const Instance& instance : kInstances) {
      if ((instance.kind == Kind::sliding) == slides) names.push_back(instance.name(type));
    }
  }
  return names;
}

const KernelRegistration registrations[] = {
    KernelRegistration({.header = "cuda/channels_last_depthwise/sliding.cuh",
                        .instances = instances_of(true),
                        .min_capability = 80}),
    KernelRegistration(
        {.header = "cuda/channels_last_depthwise/row_by_row.cuh", .instances = instances_of(false)})};

Arguments<void> arguments_of(const ConvProblem& problem, const Tiling& tiling) {
  Arguments<void> to{};
  to.weight_pitch = narrow(round_up(problem.out_channels, kVectorBytes / bytes_per_element(problem.type)));
  to.taps = narrow(problem.filter_size());
  to.epilogue = epilogue_params_of(problem.epilogue);
  to.has_activation = problem.epilogue.activation != Activation::none;
  to.output_depth = FastDivisor(narrow(problem.output[0]));
  to.output_height = narrow(problem.output[1]);
  to.output_width = narrow(problem.output[2]);
  to.filters = narrow(problem.out_channels);
  to.filters_per_channel = FastDivisor(narrow(problem.filters_per_group()));
  to.channels = narrow(problem.in_channels);
  const auto set = [](const Axes& axes, int& depth, int& height, int& width) {
    depth = narrow(axes[0]), height = narrow(axes[1]), width = narrow(axes[2]);
  };
  set(problem.input, to.input_depth, to.input_height, to.input_width);
  set(problem.filter, to.filter_depth, to.filter_height, to.filter_width);
  set(problem.stride, to.stride_depth, to.stride_height, to.stride_width);
  set(problem.dilation, to.dilation_depth, to.dilation_height, to.dilation_width);
  set(problem.pad_begin, to.pad_depth, to.pad_height, to.pad_width);
  to.tile_vectors = FastDivisor(tiling.vectors);
  to.tile_strips = FastDivisor(tiling.strips);
  to.tile_runs = tiling.runs;
  to.vector_tiles = FastDivisor(narrow(ceil_divide(vectors_of(problem, tiling.instance), tiling.vectors)));
  to.strip_tiles = FastDivisor(narrow(ceil_divide(strips_of(problem), tiling.strips)));
  to.plane_runs = FastDivisor(narrow(ceil_divide(problem.output[1], int64_t{tiling.rows})));
  to.run_rows = tiling.rows;
  to.runs = narrow(runs_of(problem, tiling));
  to.stage_bytes = narrow(tiling.stage_bytes);
  return to;
}

class DepthwisePlan final : public Plan {
 public:
  static constexpr bool kNeedsScratch = true;

  static std::vector<std::string> kernel_names(const ConvProblem& problem, const Tiling& tiling) {
    std::vector<std::string> names{instance_name(kPrepare, element_name(problem.type)),
                                   tiling.instance.name(element_name(problem.type))};
    if (tiling.instance.kind != Kind::single) names.push_back(kSingle.name(element_name(problem.type)));
    return names;
  }

  DepthwisePlan(const ConvProblem& problem, const Device& device, const Tiling& tiling)
      : problem_(problem),
        device_(device.index),
        tiling_(tiling),
        main_(problem, device, tiling),
        single_(problem, device,
                tiling.instance.kind == Kind::single ? tiling : tiling_of_single_channels(problem)) {
    const DeviceGuard guard(device_);
    const int64_t elements = int64_t{main_.arguments.taps} * main_.arguments.weight_pitch;
    prepared_bytes_ = elements * bytes_per_element(problem.type);
    prepare_.kernel =
        find_kernel(instance_name(kPrepare, element_name(problem.type)), device, sizeof(Arguments<void>));
    prepare_.grid.x = static_cast<unsigned>(ceil_divide(elements, int64_t{kPrepareThreads}));
    prepare_.block.x = kPrepareThreads;
    prepare_.start = earliest_start(prepare_.kernel);
  }

  PreparedForm prepared_form() const override {
    return {static_cast<std::size_t>(prepared_bytes_), "channels_last_depthwise"};
  }

  void prepare(const void* weights, void* prepared, void* stream) const override {
    Arguments<void> arguments = main_.arguments;
    arguments.w = weights;
    arguments.prepared_weights = prepared;
    void* parameters[] = {&arguments};
    const DeviceGuard guard(device_);
    enqueue(prepare_, stream, parameters);
  }

  void run(const ConvTensors& tensors, const Execution& execution) const override {
    const Step& step = are_aligned(tensors, kVectorBytes) ? main_ : single_;
    Arguments<void> arguments = step.arguments;
    static_cast<Tensors<void>&>(arguments) = tensors_of(tensors, execution);
    arguments.prepared_weights = const_cast<void*>(execution.prepared_weights);
    void* parameters[] = {&arguments};
    const DeviceGuard guard(device_);
    enqueue(step.launch, execution.stream, parameters);
  }

  std::vector<KernelFacts> kernels() const override {
    const DeviceGuard guard(device_);
    return {kernel_facts("channels_last_depthwise", main_.launch)};
  }

  std::string describe() const override {
    return joined("tiles of ", tiling_.runs, " runs of ", tiling_.rows, " rows x ", tiling_.strips,
                  " strips of ", kStripColumns, " columns x ", tiling_.vectors, " vectors of ",
                  tiling_.instance.channels(problem_.type), " channels, ", main_.launch.grid.x, " blocks of ",
                  tiling_.threads(), " threads");
  }

 private:
  // The kernel of the tiling, or that for any addresses.
  struct Step {
    Arguments<void> arguments;
    Launch launch;

    Step(const ConvProblem& problem, const Device& device, const Tiling& tiling)
        : arguments(arguments_of(problem, tiling)) {
      const DeviceGuard guard(device.index);
      launch.kernel =
          find_kernel(tiling.instance.name(element_name(problem.type)), device, sizeof(Arguments<void>));
      launch.grid.x = static_cast<unsigned>(tiling.blocks);
      if (tiling.shared_bytes() > 0) allow_shared_memory(launch.kernel, device.shared_memory_per_block);
      launch.block.x = static_cast<unsigned>(tiling.threads());
      launch.shared_bytes = static_cast<std::size_t>(tiling.shared_bytes());
      launch.start = earliest_start(launch.kernel);
    }
  };

  ConvProblem problem_;
  int device_;
  Tiling tiling_;
  Step main_, single_;
  Launch prepare_;
  int64_t prepared_bytes_ = 0;
};

class ChannelsLastDepthwise final : public AlgorithmByTiling<DepthwisePlan, best_of<search>, all_of<search>> {
 public:
  std::string_view name() const override { return "channels_last_depthwise"; }

  bool takes_layouts(const ConvProblem& problem) const override { return has_nhwc_tensors(problem); }

  bool fuses(const ConvProblem& problem) const override {
    return problem.epilogue.pool.kind == PoolKind::none;
  }

 private:
  std::string why_not_at_all(const ConvProblem& problem, const Device&) const override {
    if (!takes_layouts(problem)) return "it takes x, y and the residual in NHWC";
    if (std::string reason = why_not_depthwise(problem); !reason.empty()) return reason;
    const int64_t pitch = problem.out_channels + kVectorBytes;
    return why_not_32_bit_indices(
        {problem.batch * problem.input[0] * problem.input[1],
         problem.batch * problem.output[0] * problem.output[1], problem.filter_size() * pitch,
         problem.input[2] * problem.in_channels * int64_t{sizeof(float)}, padded_input(problem, 0),
         padded_input(problem, 1), padded_input(problem, 2)});
  }
};

}  // namespace
}  // namespace channels_last_depthwise

const Algorithm& cuda_channels_last_depthwise() {
  static const channels_last_depthwise::ChannelsLastDepthwise algorithm;
  return algorithm;
}

}  // namespace convswap
