#include "cuda/many_channels/plan.h"

#include <algorithm>
#include <bit>
#include <string>
#include <utility>

#include "conv/arithmetic.h"
#include "cuda/host/definition.h"
#include "cuda/host/formats.h"
#include "cuda/host/geometry.h"
#include "cuda/host/kernels.h"
#include "cuda/host/launch.h"
#include "cuda/many_channels/arguments.h"
#include "cuda/many_channels/instances.h"

namespace convswap::many_channels {
namespace {

std::vector<std::string> all_instances() {
  std::vector<std::string> names = instance_names("many_channels::kernel", kFormats, kInstances);
  for (std::string& name : instance_names("many_channels::prepare", kFormats))
    names.push_back(std::move(name));
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
  to.blocks_of_group = FastDivisor(narrow(tiling.filter_blocks));
  to.works_of_tile = FastDivisor(narrow(problem.group * tiling.filter_blocks));
  to.row_sets = tiling.row_sets;
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
  to.chunk_bytes = tiling.chunk_channels * problem.input_size() * size_of(problem.type);
  to.x_bytes = problem.batch * problem.in_channels * problem.input_size() * size_of(problem.type);
  to.run_kind = tiling.run_kind;
  to.phases_across = FastDivisor(narrow(tiling.phases_across));
  to.phases_down = FastDivisor(narrow(tiling.phases_down()));
  to.last_phase_row = narrow(std::ranges::max(tiling.phase_rows));
  to.last_phase_column = narrow(std::ranges::max(tiling.phase_columns));
  to.run_bytes = narrow(tiling.run_bytes);
  to.runs = narrow(tiling.runs);
  to.channel_shift = std::countr_zero(static_cast<uint64_t>(tiling.chunk_channels / (kConverters / 32)));
  to.channel_bytes = narrow(problem.input_size() * size_of(problem.type));
  to.staged_channel_bytes = narrow(tiling.staged_channel_bytes);
  to.pixel_stages = tiling.pixel_stages;
  to.pixel_stage_bytes = narrow(tiling.pixel_stage_bytes);
  to.image_stages = tiling.image_stages;
  to.weight_stages = tiling.weight_stages;
  to.image_stage_bytes = narrow(tiling.image_stage_bytes());
  to.weight_stage_bytes = narrow(tiling.weight_stage_bytes());
  to.shared = tiling.shared;
  std::ranges::transform(tiling.phase_rows, to.phase_rows, narrow);
  std::ranges::transform(tiling.phase_columns, to.phase_columns, narrow);
  std::copy(tiling.step_places.begin(), tiling.step_places.end(), to.step_places);
  return to;
}

// Two kernels: the weights are prepared, then all is multiplied.
class ManyChannelsPlan final : public Plan {
 public:
  ManyChannelsPlan(const ConvProblem& problem, const Device& device, const Tiling& tiling)
      : device_(device.index), tiling_(tiling), arguments_(arguments_of(problem, tiling)) {
    const DeviceGuard guard(device_);
    const std::vector<std::string> names = kernel_names(problem, tiling);
    rows_ = tiling.filter_rows(problem);
    weight_bytes_ = tiling.prepared_bytes(problem);
    prepare_ = {find_kernel(names[0], device, sizeof(Arguments<void>)), Extents(static_cast<unsigned>(rows_)),
                Extents(kPreparers), kPreparedState, Start::in_turn};
    multiply_.kernel = find_kernel(names[1], device, sizeof(Arguments<void>));
    multiply_.grid =
        Extents(static_cast<unsigned>(std::min<int64_t>(tiling.works(problem), device.multiprocessors)));
    arguments_.works_of_block = narrow(tiling.works(problem) / multiply_.grid.x);
    arguments_.longer_blocks = narrow(tiling.works(problem) % multiply_.grid.x);
    multiply_.block = Extents(kThreads);
    multiply_.shared_bytes = static_cast<std::size_t>(tiling.shared_bytes);
    allow_shared_memory(multiply_.kernel, device.shared_memory_per_block);
    prepare_.start = earliest_start(prepare_.kernel);
    multiply_.start = earliest_start(multiply_.kernel);
  }

  std::size_t scratch_bytes() const override {
    return static_cast<std::size_t>(weight_bytes_ + rows_ * static_cast<int64_t>(sizeof(FilterRange)));
  }

  void run(const ConvTensors& tensors, const Execution& execution) const override {
    Arguments<void> arguments = arguments_;
    static_cast<Tensors<void>&>(arguments) = tensors_of(tensors);
    arguments.prepared_weights = static_cast<unsigned char*>(execution.scratch);
    arguments.filter_ranges = reinterpret_cast<FilterRange*>(arguments.prepared_weights + weight_bytes_);
    void* parameters[] = {&arguments};
    const DeviceGuard guard(device_);
    enqueue(prepare_, execution.stream, parameters);
    enqueue(multiply_, execution.stream, parameters);
  }

  std::vector<KernelFacts> kernels() const override {
    const DeviceGuard guard(device_);
    return {kernel_facts("many_channels weights", prepare_), kernel_facts("many_channels", multiply_)};
  }

  std::string describe() const override {
    const auto text = [](int64_t number) { return std::to_string(number); };
    return text(tiling_.row_sets * kRows) + " filters x " + text(tiling_.columns()) + " places, " +
           text(tiling_.chunk_channels) + " channels at a time: " + text(tiling_.chunks) + " x " +
           text(tiling_.steps) + " products of 64 x " + text(kDepth) + " x " +
           text(int64_t{tiling_.tiles} * kTileColumns) + "; " +
           (tiling_.strips == 1
                ? ""
                : text(tiling_.strips) + " strips of " + text(tiling_.strip_columns) + " columns, ") +
           "rows of " + text(tiling_.pitch) + " places, " + text(tiling_.pixel_stages) +
           " stages of pixels, " + text(tiling_.image_stages) + " of images and " +
           text(tiling_.weight_stages) + " of weights; " + text(multiply_.grid.x) + " blocks of " +
           text(kThreads) + " threads, " + text(tiling_.shared_bytes) + " bytes of shared memory";
  }

 private:
  int device_;
  Tiling tiling_;
  Arguments<void> arguments_;
  int64_t rows_, weight_bytes_;
  Launch prepare_, multiply_;
};

}  // namespace

std::vector<std::string> kernel_names(const ConvProblem& problem, const Tiling& tiling) {
  const std::string_view format = tensor_core_format(problem);
  return {instance_name("many_channels::prepare", format),
          instance_name("many_channels::kernel", format, Instance{tiling.tiles}.arguments())};
}

std::unique_ptr<Plan> make_plan(const ConvProblem& problem, const Device& device, const Tiling& tiling) {
  return std::make_unique<ManyChannelsPlan>(problem, device, tiling);
}

}  // namespace convswap::many_channels
