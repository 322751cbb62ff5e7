#include "cuda/many_channels/plan.h"

#include <algorithm>
#include <bit>
#include <string>
#include <utility>

#include "conv/arithmetic.h"
#include "cuda/host/arguments.h"
#include "cuda/host/formats.h"
#include "cuda/host/kernels.h"
#include "cuda/host/launch.h"
#include "cuda/many_channels/arguments.h"
#include "cuda/many_channels/instances.h"

namespace convswap::many_channels {
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

Arguments<void> arguments_of(const ConvProblem& problem, const Tiling& tiling) {
  Arguments<void> to{};
  static_cast<Geometry&>(to) = geometry_of(problem);
  to.definition = definition_of(problem);
  to.following = following_of(problem.epilogue);
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
                Extents(kPreparers),
                static_cast<std::size_t>(PreparedState::bytes(tiling.prepared_span * tiling.phases())),
                Start::in_turn};
    multiply_ = {find_kernel(names[1], device, sizeof(Arguments<void>)),
                 {},
                 Extents(kThreads),
                 static_cast<std::size_t>(tiling.shared_bytes),
                 Start::in_turn};
    allow_shared_memory(prepare_.kernel, device.shared_memory_per_block);
    allow_shared_memory(multiply_.kernel, device.shared_memory_per_block);
    prepare_.start = earliest_start(prepare_.kernel);
    multiply_.start = earliest_start(multiply_.kernel);
    take_band(0, true, arguments_, prepare_, multiply_);
    if (tiling.splits == 1) return;
    combine_ = {find_kernel(names[2], device, sizeof(Arguments<void>)),
                Extents(static_cast<unsigned>(ceil_divide(problem.result_elements(), int64_t{kCombiners}))),
                Extents(kCombiners), 0, Start::in_turn};
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
            "many_channels of " + std::to_string(tiling_.chunk_channels) + " channels"};
  }

  void prepare(const void* weights, void* prepared, void* stream) const override {
    Arguments<void> arguments = arguments_;
    arguments.w = weights;
    take_prepared(prepared, arguments);
    arguments.weight_blocks = narrow(rows_);
    Launch launch = prepare_;
    launch.grid = Extents(static_cast<unsigned>(rows_));
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
    arguments.weights_stay = has_weights;
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
    const auto text = [](int64_t number) { return std::to_string(number); };
    return text(kRows) + " filters x " + text(tiling_.columns()) + " places, " +
           text(tiling_.chunk_channels) + " channels at a time: " + text(tiling_.chunks) + " x " +
           text(tiling_.steps) + " products of 64 x " + text(kDepth) + " x " +
           text(int64_t{tiling_.tiles} * kTileColumns) + "; " +
           (tiling_.strips == 1
                ? ""
                : text(tiling_.strips) + " strips of " + text(tiling_.strip_columns) + " columns, ") +
           "rows of " + text(tiling_.pitch) + " places, " + text(tiling_.image_stages) +
           " stages of pixels and " + text(tiling_.weight_stages) + " of weights; " + bands() +
           (tiling_.splits == 1 ? "" : text(tiling_.splits) + " splits of the channels; ") +
           text(multiply_.grid.x) + " blocks of " + text(kThreads) + " threads, " +
           text(tiling_.shared_bytes) + " bytes of shared memory";
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
    prepare.grid = Extents(static_cast<unsigned>(arguments.weight_blocks + all * shares));
    const int64_t works = tiles * arguments.works_of_tile.divisor;
    multiply.grid = Extents(static_cast<unsigned>(std::min<int64_t>(works, device_.multiprocessors)));
    arguments.works_of_block = narrow(works / multiply.grid.x);
    arguments.longer_blocks = narrow(works % multiply.grid.x);
  }

  std::string bands() const {
    const int64_t bands = ceil_divide(tiling_.prepared_tiles, tiling_.band_tiles);
    return bands == 1 ? "" : std::to_string(bands) + " bands; ";
  }

  Device device_;
  Tiling tiling_;
  Arguments<void> arguments_;
  int64_t rows_, weight_bytes_;
  int64_t ranges_, outputs_;  // of the prepared chunks and columns of a band
  Launch prepare_, multiply_, combine_;
};

}  // namespace

std::vector<std::string> kernel_names(const ConvProblem& problem, const Tiling& tiling) {
  const std::string_view format = tensor_core_format(problem);
  std::vector<std::string> names = {
      instance_name("many_channels::prepare", format),
      instance_name("many_channels::kernel", format, Instance{tiling.tiles}.arguments())};
  if (tiling.splits > 1) names.push_back(instance_name("many_channels::combine", format));
  return names;
}

std::unique_ptr<Plan> make_plan(const ConvProblem& problem, const Device& device, const Tiling& tiling) {
  return std::make_unique<ManyChannelsPlan>(problem, device, tiling);
}

}  // namespace convswap::many_channels
