#include "cuda/implicit_gemm/plan.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

#include "cuda/host/arguments.h"
#include "cuda/host/formats.h"
#include "cuda/host/kernel_plan.h"
#include "cuda/implicit_gemm/arguments.h"
#include "cuda/implicit_gemm/instances.h"

namespace convswap::implicit_gemm {
namespace {

const KnownKernels known({.header = "cuda/implicit_gemm/kernel.cuh",
                          .instances = instance_names("implicit_gemm::kernel", kTensorCoreFormats,
                                                      kInstances),
                          .least_capability = 90,
                          .is_for_it_alone = true});

struct Family {
  using Tiling = implicit_gemm::Tiling;
  using Arguments = implicit_gemm::Arguments<void>;
  static std::string name(const Tiling&) { return "implicit_gemm"; }

  static std::string kernel_name(const ConvProblem& problem, const Tiling& tiling) {
    return instance_name("implicit_gemm::kernel", tensor_core_format(problem),
                         Instance{tiling.tiles}.arguments());
  }

  static Arguments arguments_of(const ConvProblem& problem, const Device& device, const Tiling& tiling) {
    Arguments to{};
    static_cast<Geometry&>(to) = geometry_of(problem);
    to.definition = definition_of(problem);
    to.input_elements = problem.batch * problem.in_channels * problem.input_size();
    to.block_filters = tiling.filters;
    to.filter_blocks = tiling.filter_blocks;
    to.dilation_height_divisor = FastDivisor(to.dilation_height);
    to.dilation_width_divisor = FastDivisor(to.dilation_width);
    to.input_width_divisor = FastDivisor(to.input_width);

    to.folds = tiling.folds;
    to.chunks = narrow(tiling.chunks);
    to.half_chunk = narrow(tiling.half_chunk);
    to.pairs_rows = tiling.pairs_rows;
    to.row_phases = FastDivisor(narrow(tiling.row_phases));
    to.column_phases = FastDivisor(narrow(tiling.column_phases));
    to.pitch = FastDivisor(narrow(tiling.pitch));
    to.plane_places = narrow(tiling.plane_places);
    to.plane_rows = narrow(tiling.plane_rows);
    to.bundle_places = narrow(tiling.bundle_places);
    to.part_places = narrow(tiling.part_places);
    to.slot_places = narrow(tiling.slot_places);
    to.steps = narrow(tiling.steps());
    to.steps_held = narrow(tiling.steps_held());
    to.turn_ends = std::max(0, to.steps - (to.steps < kLongSum ? kStepsOfBoth : kStepsOfBothInLongSums));
    to.output_chunks = narrow(tiling.output_chunks);
    to.first_ragged = problem.output[1] % tiling.folds == 0
                          ? to.output_chunks
                          : narrow((tiling.groups - 1) * tiling.pitch / tiling.columns());
    to.stages = tiling.stages;
    to.stage_bytes = narrow(tiling.stage_bytes);
    to.buffers = tiling.buffers;
    to.buffer_bytes = narrow(tiling.buffer_bytes);
    to.late_filters = tiling.late_filters;
    to.late_bytes = narrow(tiling.late_bytes);
    to.writes_pairs = writes_pairs(problem, tiling);
    to.results_bytes = narrow(tiling.results_bytes);
    to.shared = tiling.shared;
    std::copy(tiling.owners.begin(), tiling.owners.end(), to.rows);
    for (int step = 0; step < to.steps; ++step) {
      // The distance of the halves has no sign; what is no half meets weights of zero, wherever it is read.
      HalfStep first = tiling.half_steps[2 * step], second = tiling.half_steps[2 * step + 1];
      if (second.bundle >= 0 && tiling.place_of(second) < tiling.place_of(first)) std::swap(first, second);
      const int64_t place = tiling.place_of(first);
      const int64_t distance = second.bundle < 0 ? 1 : tiling.place_of(second) - place;
      to.half_steps[2 * step] = first, to.half_steps[2 * step + 1] = second;
      to.step_places[step] = static_cast<unsigned>(place) | static_cast<unsigned>(distance) << 16;
    }
    // A y that the cache cannot hold shall not drive out of it what is asked for next.
    to.leaves_first = problem.output_elements() * size_of(problem.type) > device.second_level_cache;
    return to;
  }

  static void bind(const ConvProblem& problem, const Tiling&, Arguments& to) {
    to.y_misalignment =
        narrow(static_cast<int64_t>(reinterpret_cast<uintptr_t>(to.y) % kAlignment) / size_of(problem.type));
  }

  static int threads(const Tiling&) { return kThreads; }
  static int64_t shared_bytes(const Tiling& tiling) { return tiling.shared_bytes; }

  static Extents grid_of(const ConvProblem& problem, const Device& device, const Tiling& tiling,
                         const Launch&) {
    const int64_t blocks_per_image = problem.group * tiling.filter_blocks;
    const int64_t share = std::max<int64_t>(1, device.multiprocessors / blocks_per_image);
    return {static_cast<unsigned>(std::min(problem.batch, share)), static_cast<unsigned>(blocks_per_image)};
  }

  static std::string describe(const ConvProblem&, const Tiling& tiling, const Launch& launch) {
    return "whole images, " + std::to_string(tiling.filters) + " filters x " + std::to_string(tiling.folds) +
           " rows at a time; products of 64 x " + std::to_string(tiling.steps() * kDepth) + " x " +
           std::to_string(tiling.output_chunks * tiling.columns()) + ", the weights of " +
           std::to_string(tiling.steps_held()) + " of " + std::to_string(tiling.steps()) +
           " steps in registers; " + (tiling.pairs_rows ? "two rows in a place; " : "") +
           (tiling.stages == 1 ? "1 chunk of channels on its way, "
                               : std::to_string(tiling.stages) + " chunks of channels on their way, ") +
           (tiling.buffers == 1 ? "1 buffer" : std::to_string(tiling.buffers) + " buffers") + " for results" +
           (tiling.late_filters == 0 ? "; "
                                     : " and one for " + std::to_string(tiling.late_filters) + " filters; ") +
           std::to_string(launch.grid.x) + " x " + std::to_string(launch.grid.y) + " blocks of " +
           std::to_string(kThreads) + " threads, " + std::to_string(tiling.shared_bytes) +
           " bytes of shared memory";
  }
};

}  // namespace

std::string kernel_name(const ConvProblem& problem, const Tiling& tiling) {
  return Family::kernel_name(problem, tiling);
}

std::unique_ptr<Plan> make_plan(const ConvProblem& problem, const Device& device, const Tiling& tiling) {
  return std::make_unique<KernelPlan<Family>>(problem, device, tiling);
}

}  // namespace convswap::implicit_gemm
