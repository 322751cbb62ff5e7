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
// - In precision ieee a number is the sum of two *parts* that TF32 holds, a large one and a small one. A
//   stage has the large parts, then the small ones.
// - A *work tile* is a tile and a block of 64 or 128 filters.
//
// `kernel` is persistent and warp-specialised. One producer warp loads pixels, a K chunk a stage; the other
// loads weights, a tap of a K chunk a stage, or keeps all weights in shared memory. Two consumer warpgroups
// either share a work tile of 128 filters, or take turns with work tiles of 64 filters, so that one stores
// its results while the other multiplies. Results are transposed into shared memory (16 bits by stmatrix),
// where the residual already waits, and stored by TMA, which drops what lies beyond the tensor.
//
// Where a grid is small, the blocks of a cluster compute one work tile of 64 filters. Each multiplies some of
// the K chunks and owns some of the positions. The others store their partial sums of these positions to its
// shared memory; it adds them, and writes the results to y without TMA, whose box has all positions.
//
// Where the main loop is short, a multiprocessor runs two blocks, of which one computes while the other waits
// for its residual, its activation or its stores. Each has half of the registers and of the shared memory.
//
// In precision ieee TMA loads the pixels as they are, which wgmma takes as their large parts. Two more warps
// write the small parts. Three of the four products of parts are taken; the omitted one is at most 2^-21 of
// the product. As each wgmma truncates its sums, the products of few weight stages are summed apart, and
// added to the others with rounding. Products of an infinity and a small part may be NaN: a sum that is not
// finite is computed again, naively.
//
// `prepare` writes the weights in the order and swizzle of the stages; constant weights are prepared once.
// `unaligned` computes tensors at addresses that TMA does not take, one output a thread.
//
// Codes of quantised data (int8, uint8) are multiplied as they are; int32 sums are exact. TMA's zeros for
// padding are not the zero point of x, and the zero point times the weights is in every sum. The bias takes
// that off for all taps, and outputs at a border add it for their taps on padding. These differ for a few
// pairs of a row and a column, for which `sum_padding` writes the sums. A result chunk is 64 codes, half a
// row.
//
// Convolutions of codes with other channels than multiples of 16 are computed by way of a convolution that
// TMA takes, see derived.h: with several pixels as one, or with windows of the input that `write_windows`
// gathers.
//
// Limits: float32, float16, bfloat16 and codes; compute capability 9.0; channels and filters of numbers that
// are multiples of 16 bytes, with several groups of 128 bytes; at most 128 taps of height and width.

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "conv/arithmetic.h"
#include "cuda/channels_last/arguments.h"
#include "cuda/channels_last/derived.h"
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
  std::vector<std::string> names;
  for (const Instance& instance : kInstances) {
    for (const ElementType type : {ElementType::float32, ElementType::float16, ElementType::bfloat16,
                                   ElementType::int8, ElementType::uint8}) {
      if (!instance.computes(type)) continue;
      names.push_back(instance_name("channels_last::kernel", element_name(type), instance.arguments()));
    }
  }
  const auto add = [&](std::string_view kernel, std::span<const std::string_view> elements) {
    for (const std::string_view element : elements) names.push_back(instance_name(kernel, element));
  };
  for (const std::string_view kernel : {"channels_last::prepare", "channels_last::unaligned"}) {
    add(kernel, kElementsWithoutFloat64);
    add(kernel, kCodes);
  }
  add("channels_last::sum_padding", kCodes);
  add("channels_last::write_windows", kCodes);
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
          problem.type == ElementType::float32 && parts_of(problem) == 1};
}

TensorBox output_box(const ConvProblem& problem, const Tiling& tiling) {
  return {{problem.out_channels, problem.output[2], problem.output[1], problem.output[0], problem.batch},
          {tiling.result_row_bytes / bytes_per_element(problem.type), tiling.columns, tiling.rows, 1,
           tiling.images},
          {1, 1, 1, 1, 1}};
}

// True if the zero point of the codes of x is not 0, as which TMA loads padding.
bool has_padding_sums(const ConvProblem& problem) {
  return problem.is_quantised() && problem.quantization->x_zero_point != 0;
}

void set_codes(const ConvProblem& problem, Arguments<void>& arguments) {
  arguments.conv = naive_quantised_conv_of(problem);
  arguments.limits = step_limits_of(problem);
  arguments.code_results = code_results_of(problem);
}

void set_padding(const ConvProblem& problem, Arguments<void>& arguments) {
  arguments.rows_inside = *tap_ranges(problem, 1), arguments.columns_inside = *tap_ranges(problem, 2);
}

// Scratch memory for windows, which are several times as large as x.
constexpr int64_t kMaxWindowBytes = int64_t{512} << 20;

int64_t window_bytes(const ConvProblem& windows) {
  return windows.batch * windows.input_size() * windows.in_channels;
}

Windows windows_of(const ConvProblem& node, const Derived& derived) {
  Windows windows{};
  if (!derived.has_windows()) return windows;
  const ConvProblem& problem = derived.problem;
  const int64_t units = problem.in_channels / kUnitCodes;
  windows.channel_columns = FastDivisor(narrow(derived.window_columns));
  windows.window_units = FastDivisor(narrow(units));
  windows.rows = FastDivisor(narrow(problem.input[1]));
  windows.row_units = narrow(problem.input[2] * units);
  windows.height = narrow(node.input[1]), windows.width = narrow(node.input[2]);
  windows.stride_width = narrow(node.stride[2] * derived.joined_pixels);
  windows.pixel_columns = narrow(node.stride[2]);
  windows.dilation_width = narrow(node.dilation[2]);
  windows.pad_height = narrow(node.pad_begin[1]), windows.pad_width = narrow(node.pad_begin[2]);
  const bool is_nhwc = node.layouts.input == Layout::nhwc;
  windows.channel_stride = is_nhwc ? 1 : narrow(node.input_size());
  windows.position_stride = is_nhwc ? narrow(node.in_channels) : 1;
  windows.has_rows_of_codes = windows.position_stride * windows.dilation_width == 1;
  return windows;
}

// Weight stages whose products an accumulator may take in precision ieee; see limits.h.
int added_units(const ConvProblem& problem, const Device& device) {
  return narrow(max_ieee_products(device) / (terms_of(problem) * row_wgmmas(problem)));
}

Arguments<void> arguments_of(const ConvProblem& node, const Device& device, const Derived& derived,
                             const Tiling& tiling) {
  const ConvProblem& problem = derived.problem;
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
  arguments.tile_rows_divisor = FastDivisor(narrow(tiling.rows));
  arguments.tile_columns_divisor = FastDivisor(narrow(tiling.columns));
  arguments.splits = tiling.splits;
  arguments.y_images = narrow(problem.batch);
  arguments.y_rows = narrow(problem.output[1]);
  arguments.y_columns = narrow(problem.output[2]);
  arguments.y_channels = narrow(problem.out_channels);
  arguments.block_filters = tiling.instance.block_filters();
  arguments.filters_per_group = narrow(problem.filters_per_group());
  arguments.channels_per_group = narrow(problem.channels_per_group());
  arguments.node_filters = FastDivisor(narrow(node.out_channels));
  arguments.node_channels = narrow(node.channels_per_group());
  arguments.windows = windows_of(node, derived);
  arguments.depth_taps = narrow(problem.filter[0]);
  arguments.channel_chunks = narrow(tiling.channel_chunks);
  arguments.chunk_channels = narrow(chunk_channels(problem));
  arguments.row_wgmmas = row_wgmmas(problem);
  arguments.taps = narrow(problem.filter[1] * problem.filter[2]);
  arguments.filter_taps = narrow(node.filter_size());
  arguments.unaligned = nhwc_conv_of(node);
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
  arguments.pixel_part_bytes = narrow(tiling.pixel_part_bytes());
  arguments.weight_part_bytes = narrow(tiling.weight_part_bytes());
  arguments.added_units = added_units(problem, device);
  arguments.keeps_weights = tiling.keeps_weights;
  arguments.takes_turns =
      !tiling.instance.shares_pixels && !tiling.instance.splits_k &&
      (!tiling.keeps_weights || tiling.pixel_stages % (2 * k_chunks(problem, tiling)) != 0);
  arguments.staged_chunks = tiling.staged_chunks;
  arguments.staged_tiles = tiling.staged_tiles;
  arguments.result_chunk_bytes = narrow(tiling.result_chunk_bytes());
  arguments.staged_bytes = narrow(tiling.staged_bytes());
  arguments.stages_in_place = tiling.stages_in_place;
  arguments.has_activation = problem.epilogue.activation != Activation::none;
  arguments.shared = tiling.shared;
  arguments.epilogue_params = epilogue_params_of(problem.epilogue);
  if (problem.is_quantised()) set_codes(node, arguments);
  if (has_padding_sums(problem)) set_padding(problem, arguments);
  return arguments;
}

class ChannelsLastPlan final : public Plan {
 public:
  static constexpr bool kNeedsScratch = true;

  static std::vector<std::string> kernel_names(const ConvProblem& problem, const Tiling& tiling) {
    const std::string_view element = element_name(problem.type);
    std::vector<std::string> names{
        instance_name("channels_last::prepare", element),
        instance_name("channels_last::kernel", element, tiling.instance.arguments()),
        instance_name("channels_last::unaligned", element)};
    if (has_padding_sums(problem)) names.push_back(instance_name("channels_last::sum_padding", element));
    if (derived_of(problem).has_windows()) {
      names.push_back(instance_name("channels_last::write_windows", element));
    }
    return names;
  }

  ChannelsLastPlan(const ConvProblem& problem, const Device& device, const Tiling& tiling)
      : derived_(derived_of(problem)),
        device_(device),
        tiling_(tiling),
        arguments_(arguments_of(problem, device, derived_, tiling)) {
    const DeviceGuard guard(device_.index);
    const std::vector<std::string> names = kernel_names(problem, tiling);
    units_ = problem.group * tiling.filter_blocks * weight_units(derived_.problem, tiling);
    prepare_ = {find_kernel(names[0], device, sizeof(Arguments<void>)), Dim3(static_cast<unsigned>(units_)),
                Dim3(kPrepareThreads), 0, Start::in_turn};
    const int64_t blocks = tiling.instance.splits_k
                               ? tiling.work_tiles * tiling.splits
                               : std::min<int64_t>(tiling.work_tiles, std::max(1, device.multiprocessors) *
                                                                          tiling.instance.blocks);
    multiply_ = {find_kernel(names[1], device, sizeof(Arguments<void>)), Dim3(static_cast<unsigned>(blocks)),
                 Dim3(static_cast<unsigned>(block_threads(tiling.instance.parts))),
                 static_cast<std::size_t>(tiling.shared_bytes), Start::in_turn};
    multiply_.cluster_blocks = static_cast<unsigned>(tiling.splits);
    unaligned_ = {
        find_kernel(names[2], device, sizeof(Arguments<void>)),
        Dim3(static_cast<unsigned>(ceil_divide(problem.result_elements(), int64_t{kUnalignedThreads}))),
        Dim3(kUnalignedThreads), 0, Start::in_turn};
    if (has_padding_sums(problem)) {
      sums_ = int64_t{arguments_.rows_inside.count} * arguments_.columns_inside.count * problem.out_channels;
      sum_padding_ = {find_kernel(names[3], device, sizeof(Arguments<void>)),
                      Dim3(static_cast<unsigned>(ceil_divide(sums_, int64_t{kPrepareThreads}))),
                      Dim3(kPrepareThreads), 0, Start::in_turn};
      sum_padding_.start = earliest_start(sum_padding_.kernel);
    }
    if (derived_.has_windows()) {
      const int64_t threads = round_up(std::min(kWindowThreads, arguments_.windows.row_units), 32);
      write_windows_ = {find_kernel(names.back(), device, sizeof(Arguments<void>)),
                        Dim3(static_cast<unsigned>(derived_.problem.batch * derived_.problem.input[1])),
                        Dim3(static_cast<unsigned>(threads)), 0, Start::in_turn};
      write_windows_.start = earliest_start(write_windows_.kernel);
    }
    allow_shared_memory(multiply_.kernel, device.shared_memory_per_block);
    prepare_.start = earliest_start(prepare_.kernel);
    multiply_.start = earliest_start(multiply_.kernel);
    unaligned_.start = earliest_start(unaligned_.kernel);
  }

  // The windows of x.
  std::size_t scratch_bytes() const override {
    return static_cast<std::size_t>(write_windows_.grid.total() * arguments_.windows.row_units * kUnitCodes);
  }

  PreparedForm prepared_form() const override {
    // The sums depend on the borders, and so on the size of the image.
    return {static_cast<std::size_t>(weight_bytes() + sums_ * int64_t{sizeof(int)}),
            joined("channels_last of ", tiling_.instance.block_filters(), " filters, ", text_of_parts(),
                   text_of_derivation(), text_of_borders())};
  }

  void prepare(const void* weights, void* prepared, void* stream) const override {
    Arguments<void> arguments = arguments_;
    arguments.w = weights;
    arguments.conv.w = static_cast<const Int8*>(weights);
    set_prepared(arguments, prepared);
    void* parameters[] = {&arguments};
    const DeviceGuard guard(device_.index);
    enqueue(prepare_, stream, parameters);
    if (sums_ > 0) enqueue(sum_padding_, stream, parameters);
  }

  void run(const ConvTensors& tensors, const Execution& execution) const override {
    Arguments<void> arguments = arguments_;
    static_cast<Tensors<void>&>(arguments) = tensors_of(tensors, execution);
    const ConvProblem& problem = derived_.problem;
    if (problem.is_quantised()) bind_tensors(tensors, arguments.conv);
    ConvTensors taken = tensors;
    if (derived_.has_windows()) {
      arguments.windows.codes = static_cast<unsigned char*>(execution.scratch);
      taken.x = arguments.windows.codes;
    }
    void* parameters[] = {&arguments};
    const DeviceGuard guard(device_.index);
    if (!are_aligned(taken, kTensorMapAlignment)) {
      return enqueue(unaligned_, execution.stream, parameters);
    }
    set_prepared(arguments, const_cast<void*>(execution.prepared_weights));
    const TensorBox output = output_box(problem, tiling_);
    if (derived_.has_windows()) enqueue(write_windows_, execution.stream, parameters);
    arguments.x_map = make_tensor_map(input_box(problem, tiling_), problem.type, taken.x);
    arguments.y_map = make_tensor_map(output, problem.type, tensors.y);
    if (tensors.z != nullptr) arguments.residual_map = make_tensor_map(output, problem.type, tensors.z);
    enqueue(multiply_, execution.stream, parameters);
  }

  std::vector<KernelFacts> kernels() const override {
    const DeviceGuard guard(device_.index);
    std::vector<KernelFacts> facts = {kernel_facts("channels_last", multiply_)};
    if (derived_.has_windows()) facts.push_back(kernel_facts("channels_last windows", write_windows_));
    return facts;
  }

  std::string describe() const override {
    const ConvProblem& problem = derived_.problem;
    return joined(text_of_parts(), text_of_derivation(), tiling_.instance.block_filters(), " filters x ",
                  tiling_.images, " x ", tiling_.rows, " x ", tiling_.columns, " outputs, ",
                  k_chunks(problem, tiling_), " x ", tiling_.tap_offsets.size(), " x ",
                  terms_of(problem) * row_wgmmas(problem), " wgmmas m64n", tiling_.instance.positions(), "k",
                  kWgmmaBytes / bytes_per_element(problem.type), ", ", tiling_.pixel_stages,
                  " stages of pixels and ", tiling_.weight_stages, " of weights, ", multiply_.grid.x,
                  " blocks of ", block_threads(tiling_.instance.parts), " threads, ",
                  tiling_.splits > 1            ? joined("in clusters of ", tiling_.splits, ", ")
                  : tiling_.instance.blocks > 1 ? joined(tiling_.instance.blocks, " on a multiprocessor, ")
                                                : "",
                  tiling_.shared_bytes, " bytes of shared memory");
  }

 private:
  std::string text_of_parts() const { return tiling_.instance.parts > 1 ? "numbers in two parts, " : ""; }

  std::string text_of_derivation() const {
    return joined(
        derived_.has_windows() ? joined("windows of ", derived_.problem.in_channels, " codes, ") : "",
        derived_.joined_pixels > 1 ? joined(derived_.joined_pixels, " pixels as one, ") : "");
  }

  // The ranges of taps of both axes, for the name of prepared weights with sums of padding.
  std::string text_of_borders() const {
    std::string text;
    for (const TapRanges* axis : {&arguments_.rows_inside, &arguments_.columns_inside}) {
      for (int i = 0; i < axis->count; ++i) {
        const TapRange range = axis->ranges[i];
        text += joined(i == 0 ? ", " : " ", int{range.first}, "-", int{range.end});
      }
    }
    return text;
  }

  int64_t weight_bytes() const { return units_ * tiling_.weight_stage_bytes(); }

  // The weights in the order of the stages, then the sums of padding.
  void set_prepared(Arguments<void>& arguments, void* prepared) const {
    arguments.prepared_weights = static_cast<unsigned char*>(prepared);
    if (sums_ > 0)
      arguments.padding_sums = reinterpret_cast<int*>(arguments.prepared_weights + weight_bytes());
  }

  Derived derived_;
  Device device_;
  Tiling tiling_;
  Arguments<void> arguments_;
  Launch prepare_, sum_padding_, write_windows_, multiply_, unaligned_;
  int64_t units_ = 0, sums_ = 0;
};

class ChannelsLast final : public AlgorithmByTiling<ChannelsLastPlan, cheapest_tilings> {
 public:
  std::string_view name() const override { return "channels_last"; }
  bool takes_layouts(const ConvProblem& problem) const override {
    return has_nhwc_tensors(derived_of(problem).problem);
  }
  // The algorithms for NCHW take several times as long in precision ieee.
  bool changes_to_nhwc(const ConvProblem& problem, const Device& device) const override {
    return device.compute_capability == 90 && parts_of(problem) > 1;
  }
  bool takes_codes() const override { return true; }
  bool fuses(const ConvProblem& problem) const override {
    return problem.epilogue.pool.kind == PoolKind::none;
  }

 private:
  std::string why_no_tiling(const ConvProblem&, const Device& device) const override {
    return why_not_shared_memory("its smallest tile does", device);
  }

  std::string why_not_at_all(const ConvProblem& node, const Device& device) const override {
    if (!takes_layouts(node))
      return "it takes x, y and the residual in NHWC, and x in NCHW for some first layers of codes";
    if (node.type == ElementType::float64) return "it takes float32, float16, bfloat16 and codes";
    if (node.is_quantised() && !is_code(node.y_type)) return "its results of codes are codes";
    if (std::string reason = why_not_hopper(device); !reason.empty()) return reason;
    if (std::string reason = why_not_sizes(node); !reason.empty()) return reason;
    if (node.input_size() == 0) return "the input is empty";
    const Derived derived = derived_of(node);
    const ConvProblem& problem = derived.problem;
    // Rows of a group's channels begin at a multiple of 128 bytes, as do its filters'.
    const int64_t multiple = problem.group == 1
                                 ? static_cast<int64_t>(kTensorMapAlignment) / bytes_per_element(problem.type)
                                 : chunk_channels(problem);
    if (problem.channels_per_group() % multiple != 0 || problem.filters_per_group() % multiple != 0) {
      return joined("it takes channels and filters ", problem.group == 1 ? "" : "of a group ",
                    "in multiples of ", multiple,
                    problem.is_quantised() && problem.group == 1 && problem.spatial_rank < 3
                        ? ", or without a dilation along the columns filters of 8 or 4 if 2 or 4 divide the "
                          "columns of y"
                        : "");
    }
    if (derived.has_windows() && window_bytes(problem) > kMaxWindowBytes) {
      return joined("its windows of x take ", window_bytes(problem) >> 20, " MiB, more than ",
                    kMaxWindowBytes >> 20);
    }
    for (int axis = 1; axis < 3; ++axis) {
      if (problem.stride[axis] > 8) return "it takes strides of at most 8";
    }
    if (problem.filter[1] * problem.filter[2] > kMaxTaps) {
      return joined("it takes at most ", kMaxTaps, " taps of height and width");
    }
    if (has_padding_sums(problem)) {
      if (problem.pad_begin[0] > 0 || problem.pad_end[0] > 0) {
        return "it takes codes with a zero point without padding along the depth";
      }
      if (!tap_ranges(problem, 1) || !tap_ranges(problem, 2)) {
        return joined("along an axis, more than ", kMaxBorderOutputs,
                      " outputs have taps on padding, or lack taps in more than ", kMaxTapRanges - 1,
                      " ways");
      }
    }
    if (const int64_t phases = stride_phases(problem); phases > kMaxStridePhases) {
      return joined("its taps read ", phases, " stride phases, more than ", kMaxStridePhases);
    }
    return why_not_32_bit_indices(
        {problem.in_channels, problem.out_channels, problem.batch, problem.batch * problem.output_size(),
         problem.out_channels * problem.channels_per_group() * problem.filter_size(),
         derived.has_windows()
             ? std::max({node.in_channels * node.input_size(), problem.batch * problem.input[1],
                         problem.in_channels * problem.input[2]})
             : 0,
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
