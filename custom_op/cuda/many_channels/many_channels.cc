// Implicit GEMM for many channels on tensor cores, without an im2col matrix. Cards of compute capability 9.0
// multiply by wgmma, all others from 8.0 on by mma.sync. M is the filters, N the output positions, and K the
// channels and taps. A *filter* is the weights of one output channel.
//
//   accumulator[k, position] = sum over channel blocks c, taps t and i < 8 of
//                              w[k, 8 c + i, t] * x[c, position + offset(t), i]
//
// A *step* multiplies two channel blocks of one tap: one wgmma of a warpgroup, or mmas of its warps.
//
// wgmma reads shared memory in core matrices of 8 rows of 8 numbers, 16 bytes a row (wgmma.cuh). ldmatrix,
// which loads the operands of mma.sync, reads the same matrices, without bank conflicts. Terms of the input's
// layout there:
// - A *vector* is 8 channels of one pixel in 16 bytes (NC/8HW8). It is a row of a core matrix.
//   A *channel block* is the vectors of the same 8 channels. Any 8 neighbouring vectors are a core
//   matrix. A tap is therefore only an offset, and a pixel that is loaded once serves all taps.
// - With stride 1, a *position* numbers a place (image, row, column) of the padded input. Positions run
//   through the whole batch: along a row, then over the rows of an image, then over the images. The result
//   at a position needs the vectors at that position plus the offset of each tap. The row pitch is wide
//   enough for the halo, so a row has positions that are no outputs. Their results are computed and dropped.
//   With padding, the same zeros end one row or image and begin the next.
// - Wide images are cut into *strips* of columns. Otherwise a tile would be a part of one row, and would also
//   need the rows above and below.
// - With strides, the padded input is split into *stride phases*: the remainders of its rows and columns by
//   the strides. Each stride phase has its own vectors, at the same positions.
//
// Tiles:
// - An *output tile* is a range of neighbouring positions, which may cross rows and images.
// - A *K tile* is some channels of a conv group for one depth tap, with all taps of height and width.
// - A *prepared tile* is one, two or four neighbouring output tiles. They share the vectors of the halos
//   between them, so fewer halo vectors are prepared.
// - A *work tile* is an output tile, a block of 64 filters and, with split-K, a part of the K tiles. A block
//   computes one at a time.
// - An *accumulator tile* is 64 filters at 8 positions. Each of two consumer warpgroups has half of a work
//   tile's positions. By wgmma, a warp has 16 of the filters at all of these positions. By mma.sync, it has
//   all 64 filters at a quarter of them, at most 64 x 64, for which it reads 4 KB of shared memory a step.
//
// float32 data become float16 scaled by a power of two, which keeps as many bits as TF32
// (tensor_core_formats.cuh). Each filter has its own scale. Consecutive K tiles share a scale as long as it
// fits; at a change, the accumulators are multiplied by a power of two, which is exact. Values 29 or more
// binades below the top of a K tile's scale are converted after the last K tile, with their own scale, and
// added. Weights that span two windows of 29 binades are multiplied in two passes. Work tiles of a prepared
// tile with infinities or NaN, or with values that span more binades than the accumulators can hold, are
// computed by naive_conv_value. float16 and bfloat16 data are operands as they are, and nothing is computed
// naively: an infinite weight over padding gives NaN.
//
// Data flow, in two or three kernels:
// - `prepare` converts pixels into vectors and finds their scales, once for all filters. Pixels in the halo
//   of two prepared tiles are converted for both, and every pixel once for each depth tap. A block takes some
//   K tiles of a prepared tile. K tiles are written in the order in which `kernel` loads them.
//   `prepare` also computes the offsets of the results in y. A launch of its own before the run
//   (Plan::prepare) converts the weights, in the order in which wgmma reads them.
// - `kernel` is a persistent, warp-specialised GEMM. Two producer warps load the pixels and the weights of K
//   tiles with TMA into two pipelines; two consumer warpgroups issue wgmmas. Two wgmma groups are in flight,
//   so the tensor core has work while a warp issues the next one. Results pass through shared memory in
//   parts, so that neighbouring lanes store neighbouring positions, with the epilogue. A block computes
//   consecutive work tiles, so the filter blocks of the same output tile follow each other.
//   `mma_kernel` takes its place without wgmma. Its producer warps load with cp.async, and its consumer warps
//   load the operands of a step while the mmas of the step before it are issued.
// - `combine` adds the sums of split-K, for problems with too few work tiles for the card.
// If the prepared pixels would exceed a gigabyte, `prepare` and `kernel` alternate in *rounds* of some
// prepared tiles. benchmarks/many_channels.md has the cost of each choice and the alternatives that were
// tried.
//
// With a depth axis, each output depth is treated as an image; a *slice* is a strip of one output depth.
// Depth taps add K tiles: the same channels at another input depth.
//
// Limits: float16, bfloat16, and float32 in precision tf32; compute capability 8.0 or newer; at most 256 taps
// of height and width. The epilogue fuses a residual, ReLU and Clip, SiLU and HardSwish from 40 output
// channels of a group on, and every activation for 16-bit data. A pool is never fused.

#include <algorithm>
#include <string>
#include <utility>

#include "conv/arithmetic.h"
#include "cuda/host/algorithm_by_tiling.h"
#include "cuda/host/arguments.h"
#include "cuda/host/formats.h"
#include "cuda/host/kernels.h"
#include "cuda/host/launch.h"
#include "cuda/host/limits.h"
#include "cuda/host/text.h"
#include "cuda/many_channels/arguments.h"
#include "cuda/many_channels/family.h"
#include "plan/epilogue_stage.h"

namespace convswap {
namespace many_channels {
namespace {

std::vector<std::string> prepare_and_combine_instances() {
  std::vector<std::string> names = instance_names("many_channels::prepare", kFormats);
  for (std::string& name : instance_names("many_channels::combine", kFormats)) {
    names.push_back(std::move(name));
  }
  return names;
}

const KernelRegistration registrations[] = {
    KernelRegistration({.header = "cuda/many_channels/kernel.cuh",
                        .instances = instance_names("many_channels::kernel", kFormats, kInstances),
                        .min_capability = 90,
                        .is_arch_specific = true}),
    KernelRegistration({.header = "cuda/many_channels/mma_kernel.cuh",
                        .instances = instance_names("many_channels::mma_kernel", kFormats, kMmaInstances),
                        .min_capability = 80}),
    KernelRegistration({.header = "cuda/many_channels/prepare_and_combine.cuh",
                        .instances = prepare_and_combine_instances(),
                        .min_capability = 80})};

// Limits on the padding of prepared weights: weights that are more than kMaxPaddingFactor times as large as
// w, and more than kMaxPaddedBytes, are refused.
constexpr int64_t kMaxPaddingFactor = 8;
constexpr int64_t kMaxPaddedBytes = int64_t{64} << 20;

Arguments<void> arguments_of(const ConvProblem& problem, const Tiling& tiling) {
  Arguments<void> arguments{};
  static_cast<Geometry&>(arguments) = geometry_of(problem);
  arguments.naive_conv = naive_conv_of(problem);
  arguments.epilogue_params = epilogue_params_of(problem.epilogue);
  arguments.filter_blocks_per_group = FastDivisor(narrow(tiling.filter_blocks));
  arguments.work_tiles_per_output_tile = FastDivisor(narrow(tiling.work_tiles_per_output_tile(problem)));
  arguments.splits = FastDivisor(narrow(tiling.splits));
  arguments.y_elements = problem.result_elements();
  arguments.work_tiles_per_prepared_tile = FastDivisor(narrow(tiling.work_tiles_per_prepared_tile(problem)));
  arguments.output_tiles_per_prepared_tile = narrow(tiling.output_tiles_per_prepared_tile);
  arguments.k_tiles = narrow(tiling.k_tiles);
  arguments.k_tile_channels = narrow(tiling.k_tile_channels);
  arguments.steps = narrow(tiling.steps);
  arguments.stage_steps = narrow(tiling.stage_steps);
  arguments.tile_positions = narrow(tiling.tile_positions());
  arguments.strip_columns = narrow(tiling.strip_columns);
  arguments.slices = FastDivisor(narrow(tiling.strips * problem.output[0]));
  arguments.output_depth = FastDivisor(narrow(problem.output[0]));
  arguments.depth_taps = FastDivisor(narrow(problem.filter[0]));
  arguments.input_depth = narrow(problem.input[0]);
  arguments.stride_depth = narrow(problem.stride[0]);
  arguments.dilation_depth = narrow(problem.dilation[0]);
  arguments.pad_depth = narrow(problem.pad_begin[0]);
  arguments.pitch = FastDivisor(narrow(tiling.pitch));
  arguments.slice_rows = FastDivisor(narrow(tiling.slice_rows));
  arguments.channel_block_vectors = FastDivisor(narrow(tiling.channel_block_vectors()));
  arguments.stride_phase_vectors = FastDivisor(narrow(tiling.stride_phase_vectors));
  arguments.column_stride_phases = FastDivisor(narrow(tiling.column_stride_phases));
  arguments.prepared_channel_block_vectors =
      FastDivisor(narrow(tiling.prepared_stride_phase_vectors * tiling.stride_phases()));
  arguments.prepared_stride_phase_vectors = FastDivisor(narrow(tiling.prepared_stride_phase_vectors));
  arguments.prepared_k_tile_bytes = narrow(tiling.prepared_k_tile_bytes());
  arguments.pixel_stage_bytes = narrow(tiling.pixel_stage_bytes());
  // If a prepared tile is one output tile, the pixels of a stage are contiguous and need one TMA load.
  arguments.tma_loads = tiling.output_tiles_per_prepared_tile == 1
                            ? 1
                            : narrow(tiling.k_tile_channels / kVectorChannels * tiling.stride_phases());
  arguments.tma_load_bytes = arguments.pixel_stage_bytes / arguments.tma_loads;
  arguments.tma_load_stride = narrow(tiling.prepared_stride_phase_vectors * kVectorBytes);
  arguments.conv_groups = narrow(problem.group);
  arguments.channel_stride_bytes = narrow(problem.input_size() * bytes_per_element(problem.type));
  arguments.pixel_stages = tiling.pixel_stages;
  arguments.weight_stages = tiling.weight_stages;
  arguments.weight_stage_bytes = narrow(tiling.weight_stage_bytes());
  arguments.shared = tiling.shared;
  std::ranges::transform(tiling.stride_phase_rows, arguments.stride_phase_rows, narrow);
  std::ranges::transform(tiling.stride_phase_columns, arguments.stride_phase_columns, narrow);
  std::copy(tiling.step_offsets.begin(), tiling.step_offsets.end(), arguments.step_offsets);
  return arguments;
}

// Launches `prepare` and `kernel` for each round, and then `combine` if there are splits.
class ManyChannelsPlan final : public Plan {
 public:
  static constexpr bool kNeedsScratch = true;

  static std::vector<std::string> kernel_names(const ConvProblem& problem, const Tiling& tiling) {
    const std::string_view format = tensor_core_format(problem);
    std::vector<std::string> names = {
        instance_name("many_channels::prepare", format),
        instance_name(tiling.uses_wgmma ? "many_channels::kernel" : "many_channels::mma_kernel", format,
                      Instance{tiling.accumulator_tiles}.arguments())};
    if (tiling.splits > 1) names.push_back(instance_name("many_channels::combine", format));
    return names;
  }

  // The padded weights must not be much larger than the weights. Offsets within a prepared tile must fit into
  // 32 bits.
  static std::string why_not(const ConvProblem& problem, const Tiling& tiling) {
    const int64_t images = 2 + tiling.prepared_stride_phase_vectors /
                                   (tiling.strips * problem.output[0] * tiling.slice_rows * tiling.pitch);
    // Offsets of padding before the first depth are negative.
    const int64_t padding = (problem.pad_begin[0] + problem.dilation[0] * problem.filter[0]) *
                            problem.input[1] * problem.input[2];
    const int64_t weights = tiling.prepared_weight_bytes(problem);
    if (weights >
        std::max(kMaxPaddedBytes, kMaxPaddingFactor * problem.out_channels * problem.channels_per_group() *
                                      problem.filter_size() * bytes_per_element(problem.type))) {
      return joined("its weights, padded to 64 filters and 16 channels of each group, take ", weights,
                    " bytes");
    }
    return why_not_32_bit_indices({images * problem.in_channels * problem.input_size() + padding,
                                   images * problem.out_channels * problem.output_size(),
                                   tiling.filter_rows(problem), tiling.work_tiles(problem)});
  }

  ManyChannelsPlan(const ConvProblem& problem, const Device& device, const Tiling& tiling)
      : device_(device), tiling_(tiling), arguments_(arguments_of(problem, tiling)) {
    const DeviceGuard guard(device_.index);
    const std::vector<std::string> names = kernel_names(problem, tiling);
    filter_rows_ = tiling.filter_rows(problem);
    weight_bytes_ = tiling.prepared_weight_bytes(problem);
    pixel_range_count_ = tiling.round_tiles * tiling.prepared_k_tiles(problem);
    output_offset_count_ =
        tiling.round_tiles * tiling.output_tiles_per_prepared_tile * tiling.tile_positions();
    prepare_ = {find_kernel(names[0], device, sizeof(Arguments<void>)),
                {},
                Dim3(kPrepareThreads),
                static_cast<std::size_t>(
                    PrepareState::bytes(tiling.prepared_stride_phase_vectors * tiling.stride_phases())),
                Start::in_turn};
    multiply_ = {find_kernel(names[1], device, sizeof(Arguments<void>)),
                 {},
                 Dim3(kThreads),
                 static_cast<std::size_t>(tiling.shared_bytes),
                 Start::in_turn};
    allow_shared_memory(prepare_.kernel, device.shared_memory_per_block);
    allow_shared_memory(multiply_.kernel, device.shared_memory_per_block);
    prepare_.start = earliest_start(prepare_.kernel);
    multiply_.start = earliest_start(multiply_.kernel);
    set_round(0, arguments_, prepare_, multiply_);
    if (tiling.splits == 1) return;
    combine_ = {find_kernel(names[2], device, sizeof(Arguments<void>)),
                Dim3(static_cast<unsigned>(ceil_divide(problem.result_elements(), int64_t{kCombineThreads}))),
                Dim3(kCombineThreads), 0, Start::in_turn};
    combine_.start = earliest_start(combine_.kernel);
  }

  std::size_t scratch_bytes() const override {
    return static_cast<std::size_t>(pixel_range_count_ * tiling_.prepared_k_tile_bytes() +
                                    pixel_range_count_ * static_cast<int64_t>(sizeof(PixelRange)) +
                                    output_offset_count_ * static_cast<int64_t>(sizeof(int)) +
                                    split_accumulator_bytes());
  }

  // Weights, then the ranges of the filters.
  PreparedForm prepared_form() const override {
    return {
        static_cast<std::size_t>(weight_bytes_ + filter_rows_ * static_cast<int64_t>(sizeof(FilterRange))),
        joined("many_channels of ", tiling_.k_tile_channels, " channels")};
  }

  void prepare(const void* weights, void* prepared, void* stream) const override {
    Arguments<void> arguments = arguments_;
    arguments.w = weights;
    set_prepared_weights(prepared, arguments);
    arguments.prepares_weights = true;
    Launch launch = prepare_;
    launch.grid = Dim3(static_cast<unsigned>(filter_rows_));
    void* parameters[] = {&arguments};
    const DeviceGuard guard(device_.index);
    enqueue(launch, stream, parameters);
  }

  void run(const ConvTensors& tensors, const Execution& execution) const override {
    Arguments<void> arguments = arguments_;
    static_cast<Tensors<void>&>(arguments) = tensors_of(tensors, execution);
    arguments.prepared_pixels = static_cast<unsigned char*>(execution.scratch);
    arguments.output_offsets = reinterpret_cast<int*>(arguments.prepared_pixels +
                                                      pixel_range_count_ * tiling_.prepared_k_tile_bytes());
    arguments.pixel_ranges = reinterpret_cast<PixelRange*>(arguments.output_offsets + output_offset_count_);
    arguments.split_accumulators = reinterpret_cast<float*>(arguments.pixel_ranges + pixel_range_count_);
    set_prepared_weights(const_cast<void*>(execution.prepared_weights), arguments);
    void* parameters[] = {&arguments};
    const DeviceGuard guard(device_.index);
    Launch prepare = prepare_, multiply = multiply_;
    for (int64_t tile = 0; tile < tiling_.prepared_tiles; tile += tiling_.round_tiles) {
      set_round(tile, arguments, prepare, multiply);
      enqueue(prepare, execution.stream, parameters);
      enqueue(multiply, execution.stream, parameters);
    }
    if (tiling_.splits > 1) enqueue(combine_, execution.stream, parameters);
  }

  std::vector<KernelFacts> kernels() const override {
    const DeviceGuard guard(device_.index);
    std::vector<KernelFacts> facts = {kernel_facts("many_channels preparation", prepare_),
                                      kernel_facts("many_channels", multiply_)};
    if (tiling_.splits > 1) facts.push_back(kernel_facts("many_channels sums", combine_));
    return facts;
  }

  std::string describe() const override {
    return joined(
        kWgmmaM, " filters x ", tiling_.tile_positions(), " positions, ", tiling_.k_tile_channels,
        " channels at a time: ", tiling_.k_tiles, " x ", tiling_.steps,
        tiling_.uses_wgmma
            ? joined(" wgmmas m64n", int64_t{tiling_.accumulator_tiles} * kAccumulatorTileColumns)
            : std::string(" steps by mma m16n8"),
        "k", kWgmmaK, "; ",
        tiling_.strips == 1 ? "" : joined(tiling_.strips, " strips of ", tiling_.strip_columns, " columns, "),
        "rows of ", tiling_.pitch, " positions, ", tiling_.pixel_stages, " stages of pixels and ",
        tiling_.weight_stages, " of weights; ", rounds_text(),
        tiling_.splits == 1 ? "" : joined(tiling_.splits, " splits of the channels; "), multiply_.grid.x,
        " blocks of ", kThreads, " threads, ", tiling_.shared_bytes, " bytes of shared memory");
  }

 private:
  int64_t split_accumulator_bytes() const {
    return tiling_.splits == 1 ? 0
                               : tiling_.splits * arguments_.y_elements * static_cast<int64_t>(sizeof(float));
  }

  void set_prepared_weights(void* prepared, Arguments<void>& arguments) const {
    arguments.prepared_weights = static_cast<unsigned char*>(prepared);
    arguments.filter_ranges = reinterpret_cast<FilterRange*>(arguments.prepared_weights + weight_bytes_);
  }

  // Sets the round that begins at a prepared tile.
  void set_round(int64_t first_prepared_tile, Arguments<void>& arguments, Launch& prepare,
                 Launch& multiply) const {
    const int64_t prepared_tiles =
        std::min(tiling_.round_tiles, tiling_.prepared_tiles - first_prepared_tile);
    const int64_t tile_group_pairs = prepared_tiles * arguments.conv_groups;
    const int64_t blocks_per_tile_and_group = tiling_.k_tile_parts(device_, tile_group_pairs);
    arguments.first_prepared_tile = narrow(first_prepared_tile);
    arguments.blocks_per_tile_and_group = narrow(blocks_per_tile_and_group);
    prepare.grid = Dim3(static_cast<unsigned>(tile_group_pairs * blocks_per_tile_and_group));
    const int64_t work_tiles = prepared_tiles * arguments.work_tiles_per_prepared_tile.divisor;
    multiply.grid = Dim3(static_cast<unsigned>(std::min<int64_t>(work_tiles, device_.multiprocessors)));
    arguments.work_tiles_per_block = narrow(work_tiles / multiply.grid.x);
    arguments.blocks_with_extra_tile = narrow(work_tiles % multiply.grid.x);
  }

  std::string rounds_text() const {
    const int64_t rounds = ceil_divide(tiling_.prepared_tiles, tiling_.round_tiles);
    return rounds == 1 ? "" : joined(rounds, " rounds; ");
  }

  Device device_;
  Tiling tiling_;
  Arguments<void> arguments_;
  int64_t filter_rows_, weight_bytes_;
  int64_t pixel_range_count_, output_offset_count_;  // of a round
  Launch prepare_, multiply_, combine_;
};

// Below about 40 output channels per group, a separate epilogue kernel costs less: warps whose 16 rows have
// no filter would wait while the others apply the activation.
constexpr int64_t kMinSwishFilters = 40;

class ManyChannels final : public AlgorithmByTiling<ManyChannelsPlan, best_tiling, cheapest_tilings> {
 public:
  std::string_view name() const override { return "many_channels"; }
  bool rounds_depthwise() const override { return true; }
  // Pools are not fused. Clamps are always fused, SiLU and HardSwish from kMinSwishFilters filters on. Other
  // activations run in a separate kernel, which takes less time than a function call for each result. They
  // are fused only if the separate kernel would round twice.
  bool fuses(const ConvProblem& problem) const override {
    const Epilogue& epilogue = problem.epilogue;
    return epilogue.pool.kind == PoolKind::none &&
           (only_clamps(epilogue) ||
            (is_swish(epilogue) && problem.filters_per_group() >= kMinSwishFilters) ||
            !epilogue_stage(DeviceKind::cuda)->why_not(problem).empty());
  }

 private:
  std::string why_not_at_all(const ConvProblem& problem, const Device& device) const override {
    if (std::string reason = why_not_float(problem); !reason.empty()) return reason;
    if (std::string reason = why_not_capability(80, device); !reason.empty()) return reason;
    if (problem.type == ElementType::float32 && problem.precision == Precision::ieee) {
      return "it does not compute float32 in precision ieee";
    }
    return why_not_32_bit_indices(
        {problem.batch, problem.in_channels, problem.out_channels, problem.in_channels * problem.input_size(),
         problem.out_channels * problem.output_size(), problem.channels_per_group() * problem.filter_size(),
         padded_input(problem, 0), padded_input(problem, 1), padded_input(problem, 2),
         problem.dilation[0] * problem.filter[0], problem.dilation[1] * problem.filter[1],
         problem.dilation[2] * problem.filter[2]});
  }

  std::string why_no_tiling(const ConvProblem& problem, const Device& device) const override {
    if (problem.filter[1] * problem.filter[2] > kMaxSteps) {
      return joined("its filters have more than ", kMaxSteps, " taps of height and width");
    }
    return why_not_shared_memory("its tiles do", device);
  }
};

}  // namespace
}  // namespace many_channels

const Algorithm& cuda_many_channels() {
  static const many_channels::ManyChannels algorithm;
  return algorithm;
}

}  // namespace convswap
