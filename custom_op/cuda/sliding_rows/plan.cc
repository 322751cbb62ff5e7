#include "cuda/sliding_rows/plan.h"

#include "cuda/host/arguments.h"
#include "cuda/host/formats.h"
#include "cuda/host/kernel_plan.h"
#include "cuda/sliding_rows/arguments.h"
#include "cuda/sliding_rows/slide.h"

namespace convswap::sliding_rows {
namespace {

constexpr std::string_view kTypes[] = {"float", "Float16", "BFloat16"};
const KnownKernels known({.header = "cuda/sliding_rows/kernel.cuh",
                          .instances = instance_names("sliding_rows::kernel", kTypes, kInstances)});

struct Family {
  using Tiling = sliding_rows::Tiling;
  using Arguments = sliding_rows::Arguments<void>;
  static std::string name(const Tiling&) { return "sliding_rows"; }

  static std::string kernel_name(const ConvProblem& problem, const Tiling& tiling) {
    return instance_name("sliding_rows::kernel", element_name(problem.type), tiling.instance.arguments());
  }

  static Arguments arguments_of(const ConvProblem& problem, const Device&, const Tiling& tiling) {
    Arguments to{};
    to.following = following_of(problem.epilogue);
    to.input_height = narrow(problem.input[1]), to.input_width = narrow(problem.input[2]);
    to.output_height = narrow(problem.output[1]), to.output_width = narrow(problem.output[2]);
    to.pad_height = narrow(problem.pad_begin[1]);
    to.planes = narrow(problem.batch * problem.out_channels);
    to.image_filters = FastDivisor(narrow(problem.out_channels));
    to.multiplier = FastDivisor(narrow(problem.filters_per_group()));
    to.lanes = FastDivisor(tiling.lanes);
    to.warp_planes = tiling.warp_planes;
    to.segments = FastDivisor(tiling.segments);
    to.segment_pieces = tiling.segment_pieces;
    to.strips = FastDivisor(tiling.strips);
    to.strip_rows = tiling.strip_rows;
    return to;
  }

  static void bind(const ConvProblem& problem, const Tiling& tiling, Arguments& to) {
    to.loads_together = is_aligned(to.x, problem, tiling.instance.together);
    to.stores_together = problem.output[2] % tiling.instance.outputs == 0 &&
                         is_aligned(to.y, problem, tiling.instance.outputs);
  }

  static int threads(const Tiling&) { return kBlockWarps * kWarp; }
  static int64_t shared_bytes(const Tiling&) { return 0; }

  static Extents grid_of(const ConvProblem&, const Device&, const Tiling& tiling, const Launch&) {
    return {static_cast<unsigned>(tiling.blocks)};
  }

  static std::string describe(const ConvProblem&, const Tiling& tiling, const Launch& launch) {
    const Instance& own = tiling.instance;
    return "warps of " + std::to_string(tiling.warp_planes) + " planes x " +
           std::to_string(tiling.strip_rows) + " rows, " + std::to_string(tiling.lanes) + " lanes of " +
           std::to_string(own.outputs) + " columns each, " + std::to_string(own.together) +
           " columns a load, " + std::to_string(launch.grid.count()) + " blocks of " +
           std::to_string(kBlockWarps) + " warps";
  }
};

}  // namespace

std::string kernel_name(const ConvProblem& problem, const Tiling& tiling) {
  return Family::kernel_name(problem, tiling);
}

std::unique_ptr<Plan> make_plan(const ConvProblem& problem, const Device& device, const Tiling& tiling) {
  return std::make_unique<KernelPlan<Family>>(problem, device, tiling);
}

}  // namespace convswap::sliding_rows
