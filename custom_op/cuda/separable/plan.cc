#include "cuda/separable/plan.h"

#include "cuda/host/arguments.h"
#include "cuda/host/formats.h"
#include "cuda/host/kernel_plan.h"
#include "cuda/separable/arguments.h"

namespace convswap::separable {
namespace {

constexpr std::string_view kTypes[] = {"float", "Float16", "BFloat16"};
const KnownKernels known({.header = "cuda/separable/kernel.cuh",
                          .instances = instance_names("separable::kernel", kTypes, kInstances),
                          .least_capability = 80});

struct Family {
  using Tiling = separable::Tiling;
  using Arguments = separable::Arguments<void>;
  static std::string name(const Tiling&) { return "separable"; }

  static std::string kernel_name(const ConvProblem& problem, const Tiling& tiling) {
    return instance_name("separable::kernel", element_name(problem.type), tiling.instance.arguments());
  }

  static Arguments arguments_of(const ConvProblem& problem, const Device&, const Tiling& tiling) {
    const ConvProblem& before = problem.before.front();
    Arguments to{};
    to.between = following_of(before.epilogue);
    to.behind = following_of(problem.epilogue);
    to.depth = narrow(problem.in_channels);
    to.filters = narrow(problem.out_channels);
    to.input_height = narrow(before.input[1]), to.input_width = narrow(before.input[2]);
    to.output_height = narrow(problem.output[1]), to.output_width = narrow(problem.output[2]);
    to.tiles = FastDivisor(narrow(tiling.tiles_down * tiling.tiles_across));
    to.tiles_across = FastDivisor(narrow(tiling.tiles_across));
    return to;
  }

  static void bind(const ConvProblem& problem, const Tiling&, const ConvTensors& tensors, Arguments& to) {
    to.d = tensors.d, to.db = tensors.db;
    to.loads_together = is_aligned(to.x, problem, 4);
    to.loads_weights_together = problem.in_channels % 4 == 0 && is_aligned(to.w, problem, 4);
    to.stores_together = problem.output[2] % 2 == 0 && is_aligned(to.y, problem, 2);
  }

  static int threads(const Tiling& tiling) { return tiling.instance.threads(); }
  static int64_t shared_bytes(const Tiling& tiling) { return shared_bytes_of(tiling.instance); }

  static Extents grid_of(const ConvProblem&, const Device&, const Tiling& tiling, const Launch&) {
    return {static_cast<unsigned>(tiling.blocks)};
  }

  static std::string describe(const ConvProblem&, const Tiling& tiling, const Launch& launch) {
    const Instance& own = tiling.instance;
    return "tiles of " + std::to_string(own.tile_rows()) + "x" + std::to_string(own.tile_columns()) +
           " pixels, all filters of each; " + std::to_string(own.rows) + "x" + std::to_string(kColumns) +
           " depthwise results a thread, " + std::to_string(launch.shared_bytes) +
           " bytes of shared memory, " + std::to_string(launch.grid.count()) + " blocks";
  }
};

}  // namespace

std::string kernel_name(const ConvProblem& problem, const Tiling& tiling) {
  return Family::kernel_name(problem, tiling);
}

std::unique_ptr<Plan> make_plan(const ConvProblem& problem, const Device& device, const Tiling& tiling) {
  return std::make_unique<KernelPlan<Family>>(problem, device, tiling);
}

}  // namespace convswap::separable
