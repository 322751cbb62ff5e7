// Implicit GEMM for channels-last tensors by mma.sync: x, y and the residual are NHWC. M is the output
// positions, N the filters, and K the taps and channels. channels_last is faster where its wgmmas run.
//
// - A *piece* is 16 bytes of channels of a pixel, or of a filter at a tap: a load of cp.async, and a row of a
//   matrix of ldmatrix.
// - A *span* is eight pieces of a conv group's channels; the last one may be shorter. K is numbered by spans,
//   in a span by taps, and in a tap by pieces.
// - A *K chunk* is the next eight pieces of K, 128 bytes for each position and filter of a tile: a tap of a
//   span, or several taps of a shorter one. Few channels leave no part of a chunk empty.
// - A *tile* is a number of consecutive positions of y and a block of filters. A block computes one.
//
// A block first writes the pixel of each position at the first tap to shared memory. A thread loads a piece
// of several rows of each K chunk, always the same piece, so that its tap is computed once for all rows.
// Padding of numbers is loaded as zeros (a source size of 0), so taps, strides and borders cost address
// arithmetic alone. Pixels pass the L1 cache: neighbouring taps, which follow each other, read mostly the
// same ones. Weights bypass it.
//
// The stages of the pipeline hold rows of 128 bytes. Piece i of row r is stored as piece i ^ (r % 8), so that
// ldmatrix has no bank conflicts. Results are staged in the memory of the pipeline and stored as pieces of
// NHWC rows. The residual is loaded there first, so that a result is rounded once.
//
// `prepare` writes the weights in the order of the K chunks; constant weights are prepared once. `unaligned`
// computes tensors at addresses that are no multiples of 16 bytes, one output a thread.
//
// Codes of quantised data are multiplied as they are. Padding is loaded as the zero point of x, so that the
// zero point times all weights is in every sum; the sums begin with it taken off. All of this padding is one
// piece in global memory, from which loads must pass the L1 cache: the second-level cache would serve them
// one after the other. `prepare` orders the filters so that a thread has the sums of four neighbouring ones,
// whose codes are a word of the results. Results of other kinds than those of `CodeResults` pass through
// shared memory as sums.
//
// Compute capability 7.5 has a kernel of its own, with loads through registers and smaller mmas.
//
// Limits: float16, codes, and from compute capability 8.0 on float32 in precision tf32 and bfloat16; channels
// and filters of a conv group that are multiples of 16 bytes. A pool is a second kernel.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "conv/arithmetic.h"
#include "cuda/channels_last_mma/arguments.h"
#include "cuda/channels_last_mma/family.h"
#include "cuda/host/algorithm_by_tiling.h"
#include "cuda/host/arguments.h"
#include "cuda/host/formats.h"
#include "cuda/host/kernels.h"
#include "cuda/host/launch.h"
#include "cuda/host/limits.h"
#include "cuda/host/text.h"

namespace convswap {
namespace channels_last_mma {
namespace {

constexpr std::string_view kPrepare = "channels_last_mma::prepare";
constexpr std::string_view kPrepareCodes = "channels_last_mma::prepare_codes";
constexpr std::string_view kUnaligned = "channels_last_mma::unaligned";
constexpr std::string_view kElements75[] = {"Float16", "Int8", "UInt8"};

std::vector<std::string> instances() {
  std::vector<std::string> names =
      instance_names(kInstances[0].kernel(), kElementsWithoutFloat64, kInstances);
  for (std::string& name : instance_names(kInstances[0].kernel(), kCodes, kInstances)) {
    names.push_back(std::move(name));
  }
  return names;
}

std::vector<std::string> other_instances() {
  std::vector<std::string> names = instance_names(kPrepareCodes, kCodes);
  for (const std::string_view kernel : {kPrepare, kUnaligned}) {
    for (std::string& name : instance_names(kernel, kElementsWithoutFloat64))
      names.push_back(std::move(name));
    for (std::string& name : instance_names(kernel, kCodes)) names.push_back(std::move(name));
  }
  return names;
}

const KernelRegistration registrations[] = {
    KernelRegistration(
        {.header = "cuda/channels_last_mma/kernel.cuh", .instances = instances(), .min_capability = 80}),
    KernelRegistration({.header = "cuda/channels_last_mma/kernel_75.cuh",
                        .instances = instance_names(kInstances75[0].kernel(), kElements75, kInstances75)}),
    KernelRegistration({.header = "cuda/channels_last_mma/prepare.cuh", .instances = other_instances()})};

int64_t prepared_pieces(const ConvProblem& problem) {
  return (k_chunks(problem) * problem.out_channels + kPaddingRows) * kRowPieces;
}

int64_t pixel_pieces(const ConvProblem& problem) { return problem.group * group_pieces(problem); }

Arguments<void> arguments_of(const ConvProblem& problem, const Tiling& tiling) {
  Arguments<void> to{};
  to.epilogue = epilogue_params_of(problem.epilogue);
  to.has_activation = problem.epilogue.activation != Activation::none;
  to.stages = tiling.stages;
  to.shared = tiling.shared;
  to.filter_blocks = FastDivisor(narrow(problem.group * tiling.filter_blocks));
  to.filter_blocks_per_group = FastDivisor(narrow(tiling.filter_blocks));
  to.filters_per_group = narrow(problem.filters_per_group());
  to.out_channels = narrow(problem.out_channels);
  to.chunks = narrow(k_chunks(problem));
  to.taps = narrow(problem.filter_size());
  to.group_pieces = narrow(group_pieces(problem));
  to.whole_spans = to.group_pieces / kRowPieces;
  to.tail_pieces = to.group_pieces % kRowPieces;
  if (to.tail_pieces > 0) {
    to.tail_taps = kRowPieces / to.tail_pieces;
    to.tail_rest = kRowPieces % to.tail_pieces;
  }
  to.pixel_pieces = narrow(pixel_pieces(problem));
  to.filter_height = FastDivisor(narrow(problem.filter[1]));
  to.filter_width = FastDivisor(narrow(problem.filter[2]));
  to.positions = narrow(positions_of(problem));
  to.output_depth = FastDivisor(narrow(problem.output[0]));
  to.output_height = FastDivisor(narrow(problem.output[1]));
  to.output_width = FastDivisor(narrow(problem.output[2]));
  const auto set = [](const Axes& axes, int& depth, int& height, int& width) {
    depth = narrow(axes[0]), height = narrow(axes[1]), width = narrow(axes[2]);
  };
  set(problem.input, to.input_depth, to.input_height, to.input_width);
  set(problem.stride, to.stride_depth, to.stride_height, to.stride_width);
  set(problem.dilation, to.dilation_depth, to.dilation_height, to.dilation_width);
  set(problem.pad_begin, to.pad_depth, to.pad_height, to.pad_width);
  to.unaligned = nhwc_conv_of(problem);
  if (problem.is_quantised()) {
    to.conv = naive_quantised_conv_of(problem);
    to.requantisation = requantisation_of(problem);
    to.code_results = code_results_of(problem);
    // Addresses are multiples of 16 bytes, and filters of 16.
    to.requantisation.has_y_vectors = to.requantisation.has_z_vectors = true;
  }
  return to;
}

class ChannelsLastMmaPlan final : public Plan {
 public:
  static constexpr bool kNeedsScratch = true;

  static std::vector<std::string> kernel_names(const ConvProblem& problem, const Tiling& tiling) {
    const std::string_view element = element_name(problem.type);
    std::vector<std::string> names{
        instance_name(kPrepare, element),
        instance_name(tiling.instance.kernel(), element, tiling.instance.arguments()),
        instance_name(kUnaligned, element)};
    if (problem.is_quantised()) names.push_back(instance_name(kPrepareCodes, element));
    return names;
  }

  ChannelsLastMmaPlan(const ConvProblem& problem, const Device& device, const Tiling& tiling)
      : problem_(problem), device_(device), tiling_(tiling), arguments_(arguments_of(problem, tiling)) {
    const DeviceGuard guard(device_.index);
    const std::vector<std::string> names = kernel_names(problem, tiling);
    const int64_t tiles = problem.group * tiling.filter_blocks * tiling.position_blocks;
    prepare_ =
        launch_of(names[0], ceil_divide(prepared_pieces(problem), int64_t{kPrepareThreads}), kPrepareThreads);
    multiply_ = launch_of(names[1], tiles, tiling.instance.threads());
    multiply_.shared_bytes = static_cast<std::size_t>(tiling.shared_bytes);
    allow_shared_memory(multiply_.kernel, device.shared_memory_per_block);
    unaligned_ = launch_of(names[2], ceil_divide(problem.result_elements(), int64_t{kUnalignedThreads}),
                           kUnalignedThreads);
    if (problem.is_quantised()) {
      prepare_codes_ =
          launch_of(names[3], ceil_divide(problem.out_channels, int64_t{kPrepareThreads}), kPrepareThreads);
    }
  }

  PreparedForm prepared_form() const override {
    const auto weights = static_cast<std::size_t>(weight_bytes());
    if (!problem_.is_quantised()) return {weights, "channels_last_mma"};
    const std::size_t corrections = static_cast<std::size_t>(problem_.out_channels) * sizeof(int);
    return {weights + kPieceBytes + corrections,
            joined("channels_last_mma ", problem_.quantization->x_zero_point)};
  }

  void prepare(const void* weights, void* prepared, void* stream) const override {
    Arguments<void> arguments = arguments_;
    arguments.w = weights;
    arguments.conv.w = static_cast<const Int8*>(weights);
    set_prepared(arguments, prepared);
    void* parameters[] = {&arguments};
    const DeviceGuard guard(device_.index);
    enqueue(prepare_, stream, parameters);
    if (problem_.is_quantised()) enqueue(prepare_codes_, stream, parameters);
  }

  void run(const ConvTensors& tensors, const Execution& execution) const override {
    Arguments<void> arguments = arguments_;
    static_cast<Tensors<void>&>(arguments) = tensors_of(tensors, execution);
    if (problem_.is_quantised()) bind_tensors(tensors, arguments.conv);
    void* parameters[] = {&arguments};
    const DeviceGuard guard(device_.index);
    if (!are_aligned(tensors, kPieceBytes)) return enqueue(unaligned_, execution.stream, parameters);
    set_prepared(arguments, const_cast<void*>(execution.prepared_weights));
    enqueue(multiply_, execution.stream, parameters);
  }

  std::vector<KernelFacts> kernels() const override {
    const DeviceGuard guard(device_.index);
    return {kernel_facts("channels_last_mma", multiply_)};
  }

  std::string describe() const override {
    const Instance& instance = tiling_.instance;
    return joined("tiles of ", instance.positions, " outputs x ", instance.filters, " filters, ",
                  arguments_.chunks, " K chunks of ", kRowBytes / bytes_per_element(problem_.type),
                  " channels, ", tiling_.stages, " stages, ", multiply_.grid.x, " blocks of ",
                  instance.threads(), " threads, ", tiling_.shared_bytes, " bytes of shared memory");
  }

 private:
  int64_t weight_bytes() const { return prepared_pieces(problem_) * kPieceBytes; }

  // The weights, then for codes the piece of the zero point, and the corrections.
  void set_prepared(Arguments<void>& arguments, void* prepared) const {
    arguments.prepared_weights = static_cast<unsigned char*>(prepared);
    arguments.zero_point_piece = arguments.prepared_weights + weight_bytes();
    arguments.corrections = reinterpret_cast<int*>(arguments.zero_point_piece + kPieceBytes);
  }

  Launch launch_of(const std::string& kernel, int64_t blocks, int threads) const {
    Launch launch{find_kernel(kernel, device_, sizeof(Arguments<void>)), Dim3(static_cast<unsigned>(blocks)),
                  Dim3(static_cast<unsigned>(threads))};
    launch.start = earliest_start(launch.kernel);
    return launch;
  }

  ConvProblem problem_;
  Device device_;
  Tiling tiling_;
  Arguments<void> arguments_;
  Launch prepare_, prepare_codes_, multiply_, unaligned_;
};

class ChannelsLastMma final : public AlgorithmByTiling<ChannelsLastMmaPlan, best_of<search>, all_of<search>> {
 public:
  std::string_view name() const override { return "channels_last_mma"; }
  bool takes_layouts(const ConvProblem& problem) const override { return has_nhwc_tensors(problem); }
  // No other algorithm runs on the tensor cores of compute capability 7.5.
  bool changes_to_nhwc(const ConvProblem& problem, const Device& device) const override {
    return device.compute_capability < 80 && problem.type == ElementType::float16;
  }
  bool takes_codes() const override { return true; }
  bool fuses(const ConvProblem& problem) const override {
    return problem.epilogue.pool.kind == PoolKind::none;
  }

 private:
  std::string why_no_tiling(const ConvProblem&, const Device& device) const override {
    return why_not_shared_memory("its smallest tile does", device);
  }

  std::string why_not_at_all(const ConvProblem& problem, const Device& device) const override {
    if (!takes_layouts(problem)) return "it takes x, y and the residual in NHWC";
    if (problem.type == ElementType::float64) return "it takes float32, float16, bfloat16 and codes";
    if (problem.is_quantised() && !is_code(problem.y_type)) return "its results of codes are codes";
    if (problem.type == ElementType::float32 && problem.precision != Precision::tf32) {
      return "it computes float32 in precision tf32 alone";
    }
    const bool takes_75 = problem.type == ElementType::float16 || problem.is_quantised();
    if (std::string reason = why_not_capability(takes_75 ? 75 : 80, device); !reason.empty()) return reason;
    if (std::string reason = why_not_sizes(problem); !reason.empty()) return reason;
    if (problem.input_size() == 0) return "the input is empty";
    const int64_t multiple = kPieceBytes / bytes_per_element(problem.type);
    if (problem.channels_per_group() % multiple != 0 || problem.filters_per_group() % multiple != 0) {
      return joined("it takes channels and filters ", problem.group == 1 ? "" : "of a group ",
                    "in multiples of ", multiple);
    }
    return why_not_32_bit_indices(
        {problem.in_channels, problem.out_channels, problem.filter_size(), prepared_pieces(problem),
         problem.batch * problem.input_size() * pixel_pieces(problem), positions_of(problem),
         padded_input(problem, 0), padded_input(problem, 1), padded_input(problem, 2)});
  }
};

}  // namespace
}  // namespace channels_last_mma

const Algorithm& cuda_channels_last_mma() {
  static const channels_last_mma::ChannelsLastMma algorithm;
  return algorithm;
}

}  // namespace convswap
