// Implicit GEMM for channels-last tensors on Hopper's tensor cores (wgmma): x, y and the residual are NHWC. M
// is the filters, N the output positions, and K the channels and taps.
//
// Shared memory has pixels as rows of 128 bytes, 64 16-bit or 32 float32 channels, with TMA's 128-byte
// swizzle. The swizzle depends on addresses alone, so a matrix may begin at any row: a tap of the filter is
// an offset of rows, and a pixel that is loaded once serves all taps. TMA loads a box of pixels with zeros
// for padding, and rounds float32 to TF32.
//
// - A *K chunk* is a row of channels of a conv group for one depth tap, with all taps of height and width.
// - A *result chunk* is a row of filters, for the outputs of a tile. The results of a warpgroup are one chunk
//   of 64 16-bit filters, or two of 32 float32 filters.
// - A *tile* is a box of outputs: some columns of some rows, or whole images. Its *positions* are numbered
//   along the rows of the loaded box. Some positions are no outputs; their results are computed and dropped.
//   With stride 1 and whole rows, the zeros before a row also end the row above.
// - With strides, the padded input is split into *stride phases*: the remainders of its rows and columns by
//   the strides. Each has a box of its own, at the same positions.
// - A *work tile* is a tile and a block of 64 or 128 filters.
//
// `kernel` is persistent and warp-specialised. One producer warp loads pixels, a K chunk a stage; the other
// loads weights, a tap of a K chunk a stage, or keeps all weights in shared memory. Two consumer warpgroups
// either share a work tile of 128 filters, or take turns with work tiles of 64 filters, so that one stores
// its results while the other multiplies. Results are transposed into shared memory (16 bits by stmatrix),
// where the residual already waits, and stored by TMA, which drops what lies beyond the tensor.
//
// `prepare` writes the weights in the order and swizzle of the stages; constant weights are prepared once.
// `unaligned` computes tensors at addresses that TMA does not take, one output a thread.
//
// Limits: float32 in precision tf32, float16 and bfloat16; compute capability 9.0; channels and filters that
// are multiples of 16 bytes, with several groups of 128 bytes; at most 128 taps of height and width.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "conv/arithmetic.h"
#include "cuda/channels_last/arguments.h"
#include "cuda/channels_last/family.h"
#include "cuda/host/algorithm_by_tiling.h"
#include "cuda/host/arguments.h"
#include "cuda/host/formats.h"
#include "cuda/host/kernels.h"
#include "cuda/host/launch.h"
#include "cuda/host/limits.h"
#include "cuda/host/tensor_map.h"
#include "cuda/host/text.h"

namespace convswap {
namespace channels_last {
namespace {

std::vector<std::string> all_instances() {
  std::vector<std::string> names =
      instance_names("channels_last::kernel", kElementsWithoutFloat64, kInstances);
  for (const std::string_view kernel : {"channels_last::prepare", "channels_last::unaligned"}) {
    for (std::string& name : instance_names(kernel, kElementsWithoutFloat64))
      names.push_back(std::move(name));
  }
  return names;
}

const KernelRegistration registration({.header = "cuda/channels_last/kernel.cuh",
                                       .instances = all_instances(),
                                       .min_capability = 90,
                                       .is_arch_specific = true});

int64_t chunk_channels(const ConvProblem& problem) { return kRowBytes / bytes_per_element(problem.type); }

TensorBox input_box(const ConvProblem& problem, const Tiling& tiling) {
  return {{problem.in_channels, problem.input[2], problem.input[1], problem.input[0], problem.batch},
          {chunk_channels(problem), tiling.pitch, tiling.box_rows, 1, tiling.images},
          {1, problem.stride[2], problem.stride[1], 1, 1},
          problem.type == ElementType::float32};
}

TensorBox output_box(const ConvProblem& problem, const Tiling& tiling) {
  return {{problem.out_channels, problem.output[2], problem.output[1], problem.output[0], problem.batch},
          {chunk_channels(problem), tiling.columns, tiling.rows, 1, tiling.images},
          {1, 1, 1, 1, 1}};
}

Arguments<void> arguments_of(const ConvProblem& problem, const Tiling& tiling) {
  Arguments<void> arguments{};
  arguments.work_tiles = narrow(tiling.work_tiles);
  arguments.filter_blocks = FastDivisor(narrow(problem.group * tiling.filter_blocks));
  arguments.filter_blocks_per_group = FastDivisor(narrow(tiling.filter_blocks));
  arguments.column_tiles = FastDivisor(narrow(ceil_divide(problem.output[2], tiling.columns)));
  arguments.row_tiles = FastDivisor(narrow(ceil_divide(problem.output[1], tiling.rows)));
  arguments.output_depth = FastDivisor(narrow(problem.output[0]));
  arguments.tile_images = narrow(tiling.images);
  arguments.tile_rows = narrow(tiling.rows);
  arguments.tile_columns = narrow(tiling.columns);
  arguments.image_positions = narrow(tiling.image_positions());
  arguments.pitch = narrow(tiling.pitch);
  arguments.block_filters = tiling.instance.block_filters();
  arguments.filters_per_group = narrow(problem.filters_per_group());
  arguments.channels_per_group = narrow(problem.channels_per_group());
  arguments.depth_taps = narrow(problem.filter[0]);
  arguments.channel_chunks = narrow(tiling.channel_chunks);
  arguments.chunk_channels = narrow(chunk_channels(problem));
  arguments.taps = narrow(problem.filter[1] * problem.filter[2]);
  arguments.filter_taps = narrow(problem.filter_size());
  arguments.unaligned = nhwc_conv_of(problem);
  arguments.stride_depth = narrow(problem.stride[0]);
  arguments.stride_height = narrow(problem.stride[1]);
  arguments.stride_width = narrow(problem.stride[2]);
  arguments.dilation_depth = narrow(problem.dilation[0]);
  arguments.pad_depth = narrow(problem.pad_begin[0]);
  arguments.pad_height = narrow(problem.pad_begin[1]);
  arguments.pad_width = narrow(problem.pad_begin[2]);
  arguments.stride_phases = narrow(tiling.stride_phases());
  std::ranges::copy(tiling.phase_rows, arguments.phase_rows);
  std::ranges::copy(tiling.phase_columns, arguments.phase_columns);
  std::ranges::copy(tiling.tap_offsets, arguments.tap_offsets);
  arguments.pixel_stages = tiling.pixel_stages;
  arguments.weight_stages = tiling.weight_stages;
  arguments.phase_bytes = narrow(tiling.phase_bytes);
  arguments.pixel_stage_bytes = narrow(tiling.pixel_stage_bytes());
  arguments.loaded_bytes = narrow(tiling.loaded_bytes());
  arguments.weight_stage_bytes = narrow(tiling.weight_stage_bytes());
  arguments.keeps_weights = tiling.keeps_weights;
  arguments.takes_turns = !tiling.instance.shares_pixels &&
                          (!tiling.keeps_weights || tiling.pixel_stages < 2 * k_chunks(problem, tiling));
  arguments.staged_chunks = tiling.staged_chunks;
  arguments.result_chunk_bytes = narrow(tiling.result_chunk_bytes());
  arguments.staged_bytes = narrow(tiling.staged_bytes());
  arguments.stages_in_place = tiling.stages_in_place;
  arguments.has_activation = problem.epilogue.activation != Activation::none;
  arguments.shared = tiling.shared;
  arguments.epilogue_params = epilogue_params_of(problem.epilogue);
  return arguments;
}

class ChannelsLastPlan final : public Plan {
 public:
  static constexpr bool kNeedsScratch = true;

  static std::vector<std::string> kernel_names(const ConvProblem& problem, const Tiling& tiling) {
    const std::string_view element = element_name(problem.type);
    return {instance_name("channels_last::prepare", element),
            instance_name("channels_last::kernel", element, tiling.instance.arguments()),
            instance_name("channels_last::unaligned", element)};
  }

  ChannelsLastPlan(const ConvProblem& problem, const Device& device, const Tiling& tiling)
      : problem_(problem), device_(device), tiling_(tiling), arguments_(arguments_of(problem, tiling)) {
    const DeviceGuard guard(device_.index);
    const std::vector<std::string> names = kernel_names(problem, tiling);
    units_ = problem.group * tiling.filter_blocks * weight_units(problem, tiling);
    prepare_ = {find_kernel(names[0], device, sizeof(Arguments<void>)), Dim3(static_cast<unsigned>(units_)),
                Dim3(kPrepareThreads), 0, Start::in_turn};
    multiply_ = {find_kernel(names[1], device, sizeof(Arguments<void>)),
                 Dim3(static_cast<unsigned>(
                     std::min<int64_t>(tiling.work_tiles, std::max(1, device.multiprocessors)))),
                 Dim3(kThreads), static_cast<std::size_t>(tiling.shared_bytes), Start::in_turn};
    unaligned_ = {
        find_kernel(names[2], device, sizeof(Arguments<void>)),
        Dim3(static_cast<unsigned>(ceil_divide(problem.result_elements(), int64_t{kUnalignedThreads}))),
        Dim3(kUnalignedThreads), 0, Start::in_turn};
    allow_shared_memory(multiply_.kernel, device.shared_memory_per_block);
    prepare_.start = earliest_start(prepare_.kernel);
    multiply_.start = earliest_start(multiply_.kernel);
    unaligned_.start = earliest_start(unaligned_.kernel);
  }

  std::size_t scratch_bytes() const override { return prepared_form().bytes; }

  PreparedForm prepared_form() const override {
    return {static_cast<std::size_t>(units_ * tiling_.weight_stage_bytes()),
            joined("channels_last of ", tiling_.instance.block_filters(), " filters")};
  }

  void prepare(const void* weights, void* prepared, void* stream) const override {
    Arguments<void> arguments = arguments_;
    arguments.w = weights;
    arguments.prepared_weights = static_cast<unsigned char*>(prepared);
    void* parameters[] = {&arguments};
    const DeviceGuard guard(device_.index);
    enqueue(prepare_, stream, parameters);
  }

  void run(const ConvTensors& tensors, const Execution& execution) const override {
    Arguments<void> arguments = arguments_;
    static_cast<Tensors<void>&>(arguments) = tensors_of(tensors, execution);
    void* parameters[] = {&arguments};
    const DeviceGuard guard(device_.index);
    if (!are_aligned(tensors, kTensorMapAlignment)) {
      return enqueue(unaligned_, execution.stream, parameters);
    }
    const bool has_weights = execution.prepared_weights != nullptr;
    if (!has_weights) prepare(tensors.w, execution.scratch, execution.stream);
    arguments.prepared_weights = static_cast<unsigned char*>(
        has_weights ? const_cast<void*>(execution.prepared_weights) : execution.scratch);
    const TensorBox output = output_box(problem_, tiling_);
    arguments.x_map = make_tensor_map(input_box(problem_, tiling_), problem_.type, tensors.x);
    arguments.y_map = make_tensor_map(output, problem_.type, tensors.y);
    if (tensors.z != nullptr) arguments.residual_map = make_tensor_map(output, problem_.type, tensors.z);
    enqueue(multiply_, execution.stream, parameters);
  }

  std::vector<KernelFacts> kernels() const override {
    const DeviceGuard guard(device_.index);
    return {kernel_facts("channels_last", multiply_)};
  }

  std::string describe() const override {
    return joined(tiling_.instance.block_filters(), " filters x ", tiling_.images, " x ", tiling_.rows, " x ",
                  tiling_.columns, " outputs, ", k_chunks(problem_, tiling_), " x ",
                  tiling_.tap_offsets.size(), " x 4 wgmmas m64n", tiling_.instance.positions(), "k",
                  kWgmmaBytes / bytes_per_element(problem_.type), ", ", tiling_.pixel_stages,
                  " stages of pixels and ", tiling_.weight_stages, " of weights, ", multiply_.grid.x,
                  " blocks of ", kThreads, " threads, ", tiling_.shared_bytes, " bytes of shared memory");
  }

 private:
  ConvProblem problem_;
  Device device_;
  Tiling tiling_;
  Arguments<void> arguments_;
  Launch prepare_, multiply_, unaligned_;
  int64_t units_ = 0;
};

class ChannelsLast final : public AlgorithmByTiling<ChannelsLastPlan, cheapest_tilings> {
 public:
  std::string_view name() const override { return "channels_last"; }
  bool takes_layouts(const ConvProblem& problem) const override { return has_nhwc_tensors(problem); }
  bool fuses(const ConvProblem& problem) const override {
    return problem.epilogue.pool.kind == PoolKind::none;
  }

 private:
  std::string why_no_tiling(const ConvProblem&, const Device& device) const override {
    return why_not_shared_memory("its smallest tile does", device);
  }

  std::string why_not_at_all(const ConvProblem& problem, const Device& device) const override {
    if (!takes_layouts(problem)) return "it takes x, y and the residual in NHWC";
    if (problem.type == ElementType::float64) return "it takes float32, float16 and bfloat16";
    if (problem.type == ElementType::float32 && problem.precision != Precision::tf32) {
      return "it computes float32 in precision tf32 alone";
    }
    if (std::string reason = why_not_hopper(device); !reason.empty()) return reason;
    if (std::string reason = why_not_sizes(problem); !reason.empty()) return reason;
    if (problem.input_size() == 0) return "the input is empty";
    const int64_t multiple = problem.group == 1
                                 ? static_cast<int64_t>(kTensorMapAlignment) / bytes_per_element(problem.type)
                                 : chunk_channels(problem);
    if (problem.channels_per_group() % multiple != 0 || problem.filters_per_group() % multiple != 0) {
      return joined("it takes channels and filters ", problem.group == 1 ? "" : "of a group ",
                    "in multiples of ", multiple);
    }
    for (int axis = 1; axis < 3; ++axis) {
      if (problem.stride[axis] > 8) return "it takes strides of at most 8";
    }
    if (problem.filter[1] * problem.filter[2] > kMaxTaps) {
      return joined("it takes at most ", kMaxTaps, " taps of height and width");
    }
    if (const int64_t phases = stride_phases(problem); phases > kMaxStridePhases) {
      return joined("its taps read ", phases, " stride phases, more than ", kMaxStridePhases);
    }
    return why_not_32_bit_indices(
        {problem.in_channels, problem.out_channels, problem.batch, problem.batch * problem.output_size(),
         problem.out_channels * problem.channels_per_group() * problem.filter_size(),
         padded_input(problem, 0), padded_input(problem, 1), padded_input(problem, 2)});
  }
};

}  // namespace
}  // namespace channels_last

const Algorithm& cuda_channels_last() {
  static const channels_last::ChannelsLast algorithm;
  return algorithm;
}

}  // namespace convswap
