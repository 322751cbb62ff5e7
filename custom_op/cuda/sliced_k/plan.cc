#include "cuda/sliced_k/plan.h"

#include "conv/arithmetic.h"
#include "cuda/host/arguments.h"
#include "cuda/host/formats.h"
#include "cuda/host/kernel_plan.h"
#include "cuda/sliced_k/arguments.h"

namespace convswap::sliced_k {
namespace {

constexpr std::string_view kFormats[] = {"float", "Tf32Pairs", "Float16", "BFloat16"};
const KnownKernels known({.header = "cuda/sliced_k/kernel.cuh",
                          .instances = instance_names("sliced_k::kernel", kFormats, kInstances),
                          .least_capability = 80});

struct Family {
  using Tiling = sliced_k::Tiling;
  using Arguments = sliced_k::Arguments<void>;
  static std::string name(const Tiling&) { return "sliced_k"; }

  static std::string kernel_name(const ConvProblem& problem, const Tiling& tiling) {
    return instance_name("sliced_k::kernel", splits(problem) ? "Tf32Pairs" : element_name(problem.type),
                         tiling.instance.arguments());
  }

  static Arguments arguments_of(const ConvProblem& problem, const Device&, const Tiling& tiling) {
    Arguments to{};
    static_cast<Geometry&>(to) = geometry_of(problem);
    to.following = following_of(problem.epilogue);
    to.definition = definition_of(problem);
    to.depth = narrow(depth_of(problem));
    to.steps = narrow(ceil_divide(depth_of(problem), int64_t{kStepDepth}));
    to.pixels = static_cast<unsigned>(problem.batch * problem.output_size());
    to.plane = FastDivisor(narrow(problem.output_size()));
    to.width = FastDivisor(narrow(problem.output[2]));
    to.taps = FastDivisor(narrow(problem.filter_size()));
    to.columns = FastDivisor(narrow(problem.filter[2]));
    to.filter_blocks = FastDivisor(narrow(tiling.filter_blocks));
    return to;
  }

  static void bind(const ConvProblem& problem, const Tiling& tiling, Arguments& to) {
    to.loads_weights_together = loads_weights_together(problem) && is_aligned(to.w, problem, 4);
    to.loads_pixels_together = loads_pixels_together(problem, tiling.instance) &&
                               is_aligned(to.x, problem, tiling.instance.pixel_tiles);
  }

  static int threads(const Tiling& tiling) { return tiling.instance.warps * kWarp; }
  static int64_t shared_bytes(const Tiling& tiling) { return shared_bytes_of(tiling.instance); }

  static Extents grid_of(const ConvProblem& problem, const Device&, const Tiling& tiling, const Launch&) {
    return {static_cast<unsigned>(tiling.pixel_blocks),
            static_cast<unsigned>(problem.group * tiling.filter_blocks)};
  }

  static std::string describe(const ConvProblem&, const Tiling& tiling, const Launch& launch) {
    const Instance& own = tiling.instance;
    return "blocks of " + std::to_string(own.filters()) + " filters x " + std::to_string(own.pixels()) +
           " pixels, whose depth is shared by " + std::to_string(own.warps) + " warps, " +
           std::to_string(launch.shared_bytes) + " bytes of shared memory, " +
           std::to_string(launch.grid.count()) + " blocks";
  }
};

}  // namespace

std::string kernel_name(const ConvProblem& problem, const Tiling& tiling) {
  return Family::kernel_name(problem, tiling);
}

std::unique_ptr<Plan> make_plan(const ConvProblem& problem, const Device& device, const Tiling& tiling) {
  return std::make_unique<KernelPlan<Family>>(problem, device, tiling);
}

}  // namespace convswap::sliced_k
