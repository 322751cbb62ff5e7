// Convolution as a matrix product without im2col, for many channels, on Hopper's tensor cores.
//
// Filters are the rows of the product and pixels its columns:
//
//   sums[k, pixel] = sum over chunks of channels, taps (r, s) and bundles of eight channels of a chunk of
//                    w[k, 8 channels, r, s] * image[bundle, pixel + (r, s), 8 channels]
//
// The tensor core takes from shared memory *cores*: 8 rows of 8 numbers, 16 bytes each. A *place* of the
// image holds 8 channels of a pixel, so that 8 neighbouring pixels are a core, wherever one begins to read:
// a tap is an address, and what is loaded once serves all taps.
//
// Places are numbered through the whole batch: along a row, the rows of an image, the images. Zeros lie
// between rows, and rows of zeros between images, as many as padding asks for, and what pads the end of one
// pads the beginning of the next. A *tile* is so many neighbouring places, whatever rows or images they
// belong to, and what is computed of the places in between is not stored. For strides the padded input is
// split into *phases*, by the remainders of its rows and columns, each with places of its own. Where images
// are wide they are cut into *strips* of some columns, so that a tile is not a part of a row that needs the
// rows above and below it as well.
//
// A block takes a tile and 64 filters; its sums stay in the registers of two warpgroups, which have a half of
// the tile each.
//
// float32 data become float16 scaled by a power of two, which keeps as many bits as TF32 does
// (tensor_core_formats.cuh). Weights have a scale for each filter. Of the input a scale serves chunk after
// chunk as long as it fits; where it does not, the sums so far are multiplied by a power of two, which is
// exact. What of a chunk lies 29 binades below the largest is converted once more behind the last chunk, by
// a scale of its own, and added. Weights that span two windows are multiplied in two passes. Tiles whose
// values span more than the sums can hold, or are infinite or no numbers, are computed as the definition
// says. float16 and bfloat16 data go in as they are.
//
// Data flow, in two kernels, or three:
// - `prepare` converts pixels into places and finds their scales, each pixel once for all blocks of filters:
// a
//   block takes some chunks of a tile, or of some neighbouring tiles, which share what they have at their
//   ends. What it writes lies as the other kernel copies it, a chunk after the other. It also finds where a
//   tile's results go, and prepares the weights, each chunk's in the order in which the tensor core takes
//   them, unless they are constant and have been prepared with the session (Plan::prepare).
// - In `kernel` two warps of a block are producers: they have bulk copies bring the chunks of pixels and of
//   weights into two rings of stages, and two warpgroups are consumers, which multiply. Two groups of
//   products are under way, so that the tensor core has one while a warp comes from the other. Results pass
//   through shared memory, part after part, to where neighbouring lanes store neighbouring columns, with what
//   follows the convolution. Blocks stay, and take works that are neighbours: those of a tile follow each
//   other.
// - Where there are too few works to fill the card, these are split over the channels, and `combine` adds the
//   sums of the splits in their order.
// Of inputs so large that what is prepared would take more than a gigabyte, both kernels take one band of
// tiles after the other. What each choice costs and what else was tried: benchmarks/many_channels.md.
//
// Of data with a depth each output plane is an image by itself, of which a *slice* is a strip, and the taps
// of the depth are as more chunks: of the same channels in another plane.
//
// Limits: float16, bfloat16, and float32 in precision tf32; compute capability 9.0; at most 256 taps of
// height and width. Of what follows a residual, ReLU and Clip are computed with it, SiLU and HardSwish of
// more than a few filters, and of 16-bit data every activation.

#include <algorithm>
#include <memory>
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

std::vector<std::string> all_instances() {
  std::vector<std::string> names = instance_names("many_channels::kernel", kFormats, kInstances);
  for (const std::string_view kernel : {"many_channels::prepare", "many_channels::combine"}) {
    for (std::string& name : instance_names(kernel, kFormats)) names.push_back(std::move(name));
  }
  return names;
}

const KnownKernels known({.header = "cuda/many_channels/kernel.cuh",
                          .instances = all_instances(),
                          .least_capability = 90,
                          .is_for_it_alone = true});

// Of prepared weights, where most of them are padding: where they are so many times as large as w, and beyond
// so many bytes.
constexpr int64_t kMostPadding = 8;
constexpr int64_t kMostPaddedBytes = int64_t{64} << 20;

Arguments<void> arguments_of(const ConvProblem& problem, const Tiling& tiling) {
  Arguments<void> to{};
  static_cast<Geometry&>(to) = geometry_of(problem);
  to.definition = naive_conv_of(problem);
  to.following = epilogue_params_of(problem.epilogue);
  to.blocks_of_group = FastDivisor(narrow(tiling.filter_blocks));
  to.works_of_part = FastDivisor(narrow(tiling.works_of_part(problem)));
  to.splits = FastDivisor(narrow(tiling.splits));
  to.results = problem.result_elements();
  to.works_of_tile = FastDivisor(narrow(tiling.works_of_tile(problem)));
  to.parts = narrow(tiling.parts);
  to.chunks = narrow(tiling.chunks);
  to.chunk_channels = narrow(tiling.chunk_channels);
  to.steps = narrow(tiling.steps);
  to.group_steps = narrow(tiling.group_steps);
  to.columns = narrow(tiling.columns());
  to.strip_columns = narrow(tiling.strip_columns);
  to.slices = FastDivisor(narrow(tiling.strips * problem.output[0]));
  to.output_depth = FastDivisor(narrow(problem.output[0]));
  to.depth_taps = FastDivisor(narrow(problem.filter[0]));
  to.input_depth = narrow(problem.input[0]);
  to.stride_depth = narrow(problem.stride[0]);
  to.dilation_depth = narrow(problem.dilation[0]);
  to.pad_depth = narrow(problem.pad_begin[0]);
  to.pitch = FastDivisor(narrow(tiling.pitch));
  to.rows = FastDivisor(narrow(tiling.rows));
  to.bundle_places = FastDivisor(narrow(tiling.bundle_places()));
  to.span = FastDivisor(narrow(tiling.span));
  to.column_phases = FastDivisor(narrow(tiling.column_phases));
  to.prepared_places = FastDivisor(narrow(tiling.prepared_span * tiling.phases()));
  to.prepared_span = FastDivisor(narrow(tiling.prepared_span));
  to.prepared_bytes = narrow(tiling.prepared_chunk_bytes());
  to.image_stage_bytes = narrow(tiling.image_stage_bytes());
  // A tile that is not prepared together with others lies there as it is copied.
  to.pieces = tiling.parts == 1 ? 1 : narrow(tiling.chunk_channels / kBundleChannels * tiling.phases());
  to.piece_bytes = to.image_stage_bytes / to.pieces;
  to.piece_distance = narrow(tiling.prepared_span * kPlaceBytes);
  to.groups = narrow(problem.group);
  to.channel_bytes = narrow(problem.input_size() * size_of(problem.type));
  to.image_stages = tiling.image_stages;
  to.weight_stages = tiling.weight_stages;
  to.weight_stage_bytes = narrow(tiling.weight_stage_bytes());
  to.shared = tiling.shared;
  std::ranges::transform(tiling.phase_rows, to.phase_rows, narrow);
  std::ranges::transform(tiling.phase_columns, to.phase_columns, narrow);
  std::copy(tiling.step_places.begin(), tiling.step_places.end(), to.step_places);
  return to;
}

// Two kernels for each band of tiles: its pixels are prepared, of the first also the weights, then all is
// multiplied. Where there are splits a third adds their sums.
class ManyChannelsPlan final : public Plan {
 public:
  static constexpr bool kNeedsScratch = true;

  static std::vector<std::string> kernel_names(const ConvProblem& problem, const Tiling& tiling) {
    const std::string_view format = tensor_core_format(problem);
    std::vector<std::string> names = {
        instance_name("many_channels::prepare", format),
        instance_name("many_channels::kernel", format, Instance{tiling.tiles}.arguments())};
    if (tiling.splits > 1) names.push_back(instance_name("many_channels::combine", format));
    return names;
  }

  // What the offsets within a tile must reach, of the input and of the output.
  static std::string why_not(const ConvProblem& problem, const Tiling& tiling) {
    const int64_t images =
        2 + tiling.prepared_span / (tiling.strips * problem.output[0] * tiling.rows * tiling.pitch);
    // Padding before the first plane lies before the input.
    const int64_t padding = (problem.pad_begin[0] + problem.dilation[0] * problem.filter[0]) *
                            problem.input[1] * problem.input[2];
    const int64_t weights = tiling.prepared_weight_bytes(problem);
    if (weights >
        std::max(kMostPaddedBytes, kMostPadding * problem.out_channels * problem.channels_per_group() *
                                       problem.filter_size() * size_of(problem.type))) {
      return joined("its weights, padded to 64 filters and 16 channels of each group, take ", weights,
                    " bytes");
    }
    return why_not_indexed({images * problem.in_channels * problem.input_size() + padding,
                            images * problem.out_channels * problem.output_size(),
                            tiling.filter_rows(problem), tiling.works(problem)});
  }

  ManyChannelsPlan(const ConvProblem& problem, const Device& device, const Tiling& tiling)
      : device_(device), tiling_(tiling), arguments_(arguments_of(problem, tiling)) {
    const DeviceGuard guard(device_.index);
    const std::vector<std::string> names = kernel_names(problem, tiling);
    rows_ = tiling.filter_rows(problem);
    weight_bytes_ = tiling.prepared_weight_bytes(problem);
    ranges_ = tiling.band_tiles * tiling.prepared_chunks(problem);
    outputs_ = tiling.band_tiles * tiling.parts * tiling.columns();
    prepare_ = {find_kernel(names[0], device, sizeof(Arguments<void>)),
                {},
                Dim3(kPreparers),
                static_cast<std::size_t>(PreparedState::bytes(tiling.prepared_span * tiling.phases())),
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
    take_band(0, true, arguments_, prepare_, multiply_);
    if (tiling.splits == 1) return;
    combine_ = {find_kernel(names[2], device, sizeof(Arguments<void>)),
                Dim3(static_cast<unsigned>(ceil_divide(problem.result_elements(), int64_t{kCombiners}))),
                Dim3(kCombiners), 0, Start::in_turn};
    combine_.start = earliest_start(combine_.kernel);
  }

  std::size_t scratch_bytes() const override {
    return static_cast<std::size_t>(ranges_ * tiling_.prepared_chunk_bytes() +
                                    ranges_ * static_cast<int64_t>(sizeof(PixelRange)) +
                                    outputs_ * static_cast<int64_t>(sizeof(int)) + partial_bytes()) +
           prepared_form().bytes;
  }

  // The weights, then how they were converted.
  PreparedForm prepared_form() const override {
    return {static_cast<std::size_t>(weight_bytes_ + rows_ * static_cast<int64_t>(sizeof(FilterRange))),
            joined("many_channels of ", tiling_.chunk_channels, " channels")};
  }

  void prepare(const void* weights, void* prepared, void* stream) const override {
    Arguments<void> arguments = arguments_;
    arguments.w = weights;
    take_prepared(prepared, arguments);
    arguments.weight_blocks = narrow(rows_);
    Launch launch = prepare_;
    launch.grid = Dim3(static_cast<unsigned>(rows_));
    void* parameters[] = {&arguments};
    const DeviceGuard guard(device_.index);
    enqueue(launch, stream, parameters);
  }

  void run(const ConvTensors& tensors, const Execution& execution) const override {
    Arguments<void> arguments = arguments_;
    static_cast<Tensors<void>&>(arguments) = tensors_of(tensors, execution);
    arguments.prepared_pixels = static_cast<unsigned char*>(execution.scratch);
    arguments.prepared_outputs =
        reinterpret_cast<int*>(arguments.prepared_pixels + ranges_ * tiling_.prepared_chunk_bytes());
    // Room for the weights is there whether they have been prepared or not.
    unsigned char* const weights = reinterpret_cast<unsigned char*>(arguments.prepared_outputs + outputs_);
    arguments.pixel_ranges = reinterpret_cast<PixelRange*>(weights + prepared_form().bytes);
    arguments.partial_sums = reinterpret_cast<float*>(arguments.pixel_ranges + ranges_);
    const bool has_weights = execution.prepared_weights != nullptr;
    arguments.weights_are_constant = has_weights;
    take_prepared(has_weights ? const_cast<void*>(execution.prepared_weights) : weights, arguments);
    void* parameters[] = {&arguments};
    const DeviceGuard guard(device_.index);
    Launch prepare = prepare_, multiply = multiply_;
    for (int64_t tile = 0; tile < tiling_.prepared_tiles; tile += tiling_.band_tiles) {
      take_band(tile, !has_weights && tile == 0, arguments, prepare, multiply);
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
        kRows, " filters x ", tiling_.columns(), " places, ", tiling_.chunk_channels,
        " channels at a time: ", tiling_.chunks, " x ", tiling_.steps, " products of 64 x ", kDepth, " x ",
        int64_t{tiling_.tiles} * kTileColumns, "; ",
        tiling_.strips == 1 ? "" : joined(tiling_.strips, " strips of ", tiling_.strip_columns, " columns, "),
        "rows of ", tiling_.pitch, " places, ", tiling_.image_stages, " stages of pixels and ",
        tiling_.weight_stages, " of weights; ", bands(),
        tiling_.splits == 1 ? "" : joined(tiling_.splits, " splits of the channels; "), multiply_.grid.x,
        " blocks of ", kThreads, " threads, ", tiling_.shared_bytes, " bytes of shared memory");
  }

 private:
  int64_t partial_bytes() const {
    return tiling_.splits == 1 ? 0
                               : tiling_.splits * arguments_.results * static_cast<int64_t>(sizeof(float));
  }

  void take_prepared(void* prepared, Arguments<void>& arguments) const {
    arguments.prepared_weights = static_cast<unsigned char*>(prepared);
    arguments.filter_ranges = reinterpret_cast<FilterRange*>(arguments.prepared_weights + weight_bytes_);
  }

  // Has the kernels take the tiles from one on, and prepare the weights or not.
  void take_band(int64_t tile, bool with_weights, Arguments<void>& arguments, Launch& prepare,
                 Launch& multiply) const {
    const int64_t tiles = std::min(tiling_.band_tiles, tiling_.prepared_tiles - tile);
    const int64_t all = tiles * arguments.groups;
    const int64_t blocks = 3 * device_.multiprocessors * (kPreparersOfMultiprocessor / kPreparers);
    const int64_t shares = std::clamp<int64_t>(ceil_divide(blocks, all), 1, tiling_.chunks);
    arguments.first_tile = narrow(tile);
    arguments.weight_blocks = with_weights ? narrow(rows_) : 0;
    arguments.shares = narrow(shares);
    prepare.grid = Dim3(static_cast<unsigned>(arguments.weight_blocks + all * shares));
    const int64_t works = tiles * arguments.works_of_tile.divisor;
    multiply.grid = Dim3(static_cast<unsigned>(std::min<int64_t>(works, device_.multiprocessors)));
    arguments.works_of_block = narrow(works / multiply.grid.x);
    arguments.longer_blocks = narrow(works % multiply.grid.x);
  }

  std::string bands() const {
    const int64_t bands = ceil_divide(tiling_.prepared_tiles, tiling_.band_tiles);
    return bands == 1 ? "" : joined(bands, " bands; ");
  }

  Device device_;
  Tiling tiling_;
  Arguments<void> arguments_;
  int64_t rows_, weight_bytes_;
  int64_t ranges_, outputs_;  // of the prepared chunks and columns of a band
  Launch prepare_, multiply_, combine_;
};

// About where the rows of a tile cost as much as a kernel of its own takes for the filters.
constexpr int64_t kLeastFiltersOfSwish = 40;

class ManyChannels final : public AlgorithmByTiling<ManyChannelsPlan, best_tiling, cheapest_tilings> {
 public:
  std::string_view name() const override { return "many_channels"; }
  bool rounds_depthwise() const override { return true; }
  // A pool not, and other activations only where a kernel of their own would round twice: that takes less
  // time than to call them for one result after the other, and for few filters than to compute them here,
  // where warps without filters wait.
  bool fuses(const ConvProblem& problem) const override {
    const Epilogue& epilogue = problem.epilogue;
    return epilogue.pool.kind == PoolKind::none &&
           (only_clamps(epilogue) ||
            (is_swish(epilogue) && problem.filters_per_group() >= kLeastFiltersOfSwish) ||
            !epilogue_stage(DeviceKind::cuda)->why_not(problem).empty());
  }

 private:
  std::string why_not_at_all(const ConvProblem& problem, const Device& device) const override {
    if (std::string reason = why_not_float(problem); !reason.empty()) return reason;
    if (std::string reason = why_not_hopper(device); !reason.empty()) return reason;
    if (problem.type == ElementType::float32 && problem.precision == Precision::ieee) {
      return "it does not compute float32 in precision ieee";
    }
    return why_not_indexed(
        {problem.batch, problem.in_channels, problem.out_channels, problem.in_channels * problem.input_size(),
         problem.out_channels * problem.output_size(), problem.channels_per_group() * problem.filter_size(),
         padded_input(problem, 0), padded_input(problem, 1), padded_input(problem, 2),
         problem.dilation[0] * problem.filter[0], problem.dilation[1] * problem.filter[1],
         problem.dilation[2] * problem.filter[2]});
  }

  std::string why_no_tiling(const ConvProblem& problem, const Device& device) const override {
    if (problem.filter[1] * problem.filter[2] > kMostSteps) {
      return joined("its filters have more than ", kMostSteps, " taps of height and width");
    }
    return why_not_fitting("its tiles do", device);
  }
};

}  // namespace
}  // namespace many_channels

const Algorithm& cuda_many_channels() {
  static const many_channels::ManyChannels algorithm;
  return algorithm;
}

}  // namespace convswap
