#include "cuda/pointwise/plan.h"

#include <algorithm>
#include <cstdint>
#include <initializer_list>

#include "cuda/host/arguments.h"
#include "cuda/host/formats.h"
#include "cuda/host/kernel_plan.h"
#include "cuda/pointwise/arguments.h"

namespace convswap::pointwise {
namespace {

const KnownKernels known({.header = "cuda/pointwise/kernel.cuh",
                          .instances = instance_names("pointwise::kernel", kFormats, kInstances),
                          .least_capability = 90,
                          .is_for_it_alone = true});

struct Family {
  using Tiling = pointwise::Tiling;
  using Arguments = pointwise::Arguments<void>;
  static std::string name(const Tiling&) { return "pointwise"; }
  static std::string kernel_name(const ConvProblem& problem, const Tiling& tiling) {
    return pointwise::kernel_name(problem, tiling);
  }

  static Arguments arguments_of(const ConvProblem& problem, const Device&, const Tiling& tiling) {
    Arguments to{};
    to.channels = narrow(problem.channels_per_group());
    to.filters = narrow(problem.filters_per_group());
    to.in_channels = narrow(problem.in_channels);
    to.out_channels = narrow(problem.out_channels);
    to.input_plane = narrow(problem.input_size());
    to.output_plane = FastDivisor(narrow(problem.output_size()));
    to.output_area = FastDivisor(narrow(problem.output[1] * problem.output[2]));
    to.output_width = FastDivisor(narrow(problem.output[2]));
    to.pixels = static_cast<unsigned>(problem.batch * problem.output_size());
    to.depth_step = narrow(problem.stride[0] * problem.input[1] * problem.input[2]);
    to.row_step = narrow(problem.stride[1] * problem.input[2]);
    to.column_step = narrow(problem.stride[2]);
    to.is_dense = problem.output == problem.input;
    to.tiles = narrow(tiling.tiles);
    to.chunks = narrow(tiling.chunks);
    to.blocks_of_group = FastDivisor(narrow(tiling.filter_blocks));
    to.following = following_of(problem.epilogue);
    return to;
  }

  static void bind(const ConvProblem& problem, const Tiling&, Arguments& to) {
    const auto are_aligned = [&](std::initializer_list<const void*> tensors) {
      return std::ranges::all_of(tensors, [&](const void* tensor) {
        return reinterpret_cast<uintptr_t>(tensor) % static_cast<uintptr_t>(2 * size_of(problem.type)) == 0;
      });
    };
    to.stores_pairs = problem.output_size() % 2 == 0 && are_aligned({to.y, to.z});
    to.loads_pairs = to.stores_pairs && to.is_dense && are_aligned({to.x});
  }

  static int threads(const Tiling& tiling) { return 128 * tiling.instance.warpgroups; }
  static int64_t shared_bytes(const Tiling& tiling) { return tiling.shared_bytes; }

  static Extents grid_of(const ConvProblem& problem, const Device&, const Tiling& tiling, const Launch&) {
    return {static_cast<unsigned>(tiling.columns),
            static_cast<unsigned>(problem.group * tiling.filter_blocks)};
  }

  static std::string describe(const ConvProblem& problem, const Tiling& tiling, const Launch& launch) {
    const auto text = [](int64_t number) { return std::to_string(number); };
    return "tiles of " + text(kPixels) + " pixels x " + text(tiling.instance.filters()) + " filters, " +
           text(tiling.chunks) + " x " + text(tiling.instance.channels(size_of(problem.type))) + " channels" +
           (tiling.instance.slots > 0 ? " by way of shared memory, " : ", ") + text(launch.grid.x) + " x " +
           text(launch.grid.y) + " blocks of " + text(launch.block.x) + " threads, " +
           text(tiling.shared_bytes) + " bytes of shared memory";
  }
};

}  // namespace

std::string kernel_name(const ConvProblem& problem, const Tiling& tiling) {
  return instance_name("pointwise::kernel", element_name(problem.type), tiling.instance.arguments());
}

std::unique_ptr<Plan> make_plan(const ConvProblem& problem, const Device& device, const Tiling& tiling) {
  return std::make_unique<KernelPlan<Family>>(problem, device, tiling);
}

}  // namespace convswap::pointwise
