// Depthwise convolution of channels-last tensors: x, y and the residual are NHWC. Each filter sees one
// channel, so tensor cores would reuse no operand; memory bandwidth is the limit.
//
// A thread computes a strip of adjacent outputs of a row, for 16 bytes of channels. For each filter row it
// loads the pixels that the strip reads, and the row's weights, into registers. Each pixel is then added to
// all outputs of the strip that it contributes to: a strip of eight outputs loads 30 pixels for a 3x3 filter
// instead of 72. A block computes a tile: bands of rows, one after the other. The rows that several strips
// read come from the multiprocessor's L1 cache.
//
// `prepare` writes the weights as (taps, channels), so that a thread loads those of its channels together;
// constant weights are prepared once. The kernel without vectors computes one filter per thread. It takes
// channels that are no whole number of vectors, several filters per channel, and tensors at addresses that
// are no multiple of 16 bytes.
//
// Accumulators are float32 in precisions tf32 and ieee; only the result is rounded.
//
// Limits: float32, float16 and bfloat16; one channel per group, with any number of filters. A pool is a
// second kernel. Columns of padding are multiplied as zeros, so an infinite weight over them gives NaN.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
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

constexpr std::string_view kKernel = "channels_last_depthwise::kernel";
constexpr std::string_view kPrepare = "channels_last_depthwise::prepare";

std::vector<std::string> all_instances() {
  std::vector<std::string> names = instance_names(kKernel, kElementsWithoutFloat64, kInstances);
  for (std::string& name : instance_names(kPrepare, kElementsWithoutFloat64))
    names.push_back(std::move(name));
  return names;
}

const KernelRegistration registration({.header = "cuda/channels_last_depthwise/kernel.cuh",
                                       .instances = all_instances()});

Arguments<void> arguments_of(const ConvProblem& problem, const Tiling& tiling) {
  Arguments<void> to{};
  to.weight_pitch = narrow(round_up(problem.out_channels, kVectorBytes / bytes_per_element(problem.type)));
  to.taps = narrow(problem.filter_size());
  to.epilogue = epilogue_params_of(problem.epilogue);
  to.rows = narrow(rows_of(problem));
  to.output_depth = FastDivisor(narrow(problem.output[0]));
  to.output_height = FastDivisor(narrow(problem.output[1]));
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
  to.vectors_per_tile = FastDivisor(tiling.vectors);
  to.strips_per_tile = FastDivisor(tiling.strips);
  to.band_rows = tiling.rows;
  to.bands = tiling.bands;
  to.vector_tiles = FastDivisor(narrow(ceil_divide(vectors_of(problem, tiling.instance), tiling.vectors)));
  to.strip_tiles = FastDivisor(narrow(ceil_divide(strips_of(problem, tiling.instance), tiling.strips)));
  return to;
}

std::string kernel_name(const ConvProblem& problem, const Instance& instance) {
  return instance_name(kKernel, element_name(problem.type), instance.arguments());
}

class DepthwisePlan final : public Plan {
 public:
  static constexpr bool kNeedsScratch = true;

  static std::vector<std::string> kernel_names(const ConvProblem& problem, const Tiling& tiling) {
    std::vector<std::string> names{instance_name(kPrepare, element_name(problem.type)),
                                   kernel_name(problem, tiling.instance)};
    if (tiling.instance.has_vectors) names.push_back(kernel_name(problem, kWithoutVectors));
    return names;
  }

  DepthwisePlan(const ConvProblem& problem, const Device& device, const Tiling& tiling)
      : problem_(problem),
        device_(device.index),
        tiling_(tiling),
        main_(problem, device, tiling),
        without_vectors_(problem, device,
                         tiling.instance.has_vectors ? tiling_without_vectors(problem) : tiling) {
    const DeviceGuard guard(device_);
    const int64_t elements = int64_t{main_.arguments.taps} * main_.arguments.weight_pitch;
    prepared_bytes_ = elements * bytes_per_element(problem.type);
    prepare_.kernel =
        find_kernel(instance_name(kPrepare, element_name(problem.type)), device, sizeof(Arguments<void>));
    prepare_.grid.x = static_cast<unsigned>(ceil_divide(elements, int64_t{kPrepareThreads}));
    prepare_.block.x = kPrepareThreads;
    prepare_.start = earliest_start(prepare_.kernel);
  }

  std::size_t scratch_bytes() const override { return prepared_form().bytes; }

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
    const bool is_prepared = execution.prepared_weights != nullptr;
    if (!is_prepared) prepare(tensors.w, execution.scratch, execution.stream);
    const Step& step = are_aligned(tensors, kVectorBytes) ? main_ : without_vectors_;
    Arguments<void> arguments = step.arguments;
    static_cast<Tensors<void>&>(arguments) = tensors_of(tensors, execution);
    arguments.prepared_weights =
        is_prepared ? const_cast<void*>(execution.prepared_weights) : execution.scratch;
    void* parameters[] = {&arguments};
    const DeviceGuard guard(device_);
    enqueue(step.launch, execution.stream, parameters);
  }

  std::vector<KernelFacts> kernels() const override {
    const DeviceGuard guard(device_);
    return {kernel_facts("channels_last_depthwise", main_.launch)};
  }

  std::string describe() const override {
    return joined("tiles of ", tiling_.bands, " x ", tiling_.rows, " rows x ", tiling_.strips, " strips of ",
                  tiling_.instance.outputs, " outputs x ", tiling_.vectors, " vectors of ",
                  tiling_.instance.channels(problem_.type), " channels, ", main_.launch.grid.x, " blocks of ",
                  tiling_.threads(), " threads");
  }

 private:
  // The kernel with or without vectors.
  struct Step {
    Arguments<void> arguments;
    Launch launch;

    Step(const ConvProblem& problem, const Device& device, const Tiling& tiling)
        : arguments(arguments_of(problem, tiling)) {
      const DeviceGuard guard(device.index);
      launch.kernel = find_kernel(kernel_name(problem, tiling.instance), device, sizeof(Arguments<void>));
      launch.grid.x = static_cast<unsigned>(tiling.blocks);
      launch.block.x = static_cast<unsigned>(tiling.threads());
      launch.start = earliest_start(launch.kernel);
    }
  };

  ConvProblem problem_;
  int device_;
  Tiling tiling_;
  Step main_, without_vectors_;
  Launch prepare_;
  int64_t prepared_bytes_ = 0;
};

class ChannelsLastDepthwise final : public AlgorithmByTiling<DepthwisePlan, best_tiling, cheapest_tilings> {
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
    return why_not_32_bit_indices({problem.batch * problem.input[0] * problem.input[1], rows_of(problem),
                                   problem.filter_size() * pitch, padded_input(problem, 0),
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
