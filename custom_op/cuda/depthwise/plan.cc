#include "cuda/depthwise/plan.h"

#include <cstdint>
#include <utility>

#include "conv/arithmetic.h"
#include "cuda/depthwise/arguments.h"
#include "cuda/host/arguments.h"
#include "cuda/host/formats.h"
#include "cuda/host/kernel_plan.h"

namespace convswap::depthwise {
namespace {

constexpr std::string_view kTypes[] = {"float", "Float16", "BFloat16"};
const KnownKernels known({.header = "cuda/depthwise/kernel.cuh",
                          .instances = instance_names("depthwise::kernel", kTypes, kInstances)});

struct Family {
  using Tiling = depthwise::Tiling;
  using Arguments = depthwise::Arguments<void>;
  static std::string name(const Tiling&) { return "depthwise"; }

  static std::string kernel_name(const ConvProblem& problem, const Tiling& tiling) {
    return instance_name("depthwise::kernel", element_name(problem.type), tiling.instance.arguments());
  }

  static Arguments arguments_of(const ConvProblem& problem, const Device&, const Tiling& tiling) {
    Arguments to{};
    static_cast<Geometry&>(to) = geometry_of(problem);
    to.following = following_of(problem.epilogue);

    to.planes = narrow(problem.batch * problem.out_channels * problem.output[0]);
    to.output_depth = FastDivisor(narrow(problem.output[0]));
    to.image_filters = FastDivisor(narrow(problem.out_channels));
    to.multiplier = FastDivisor(narrow(problem.filters_per_group()));
    to.filter_depth = narrow(problem.filter[0]);
    to.input_depth = narrow(problem.input[0]);
    to.stride_depth = narrow(problem.stride[0]);
    to.dilation_depth = narrow(problem.dilation[0]);
    to.pad_depth = narrow(problem.pad_begin[0]);
    to.depth_taps = FastDivisor(narrow(problem.filter[0]));
    to.taps = FastDivisor(narrow(problem.filter_size()));
    to.together = tiling.together;

    to.block_planes = tiling.planes;
    to.tile_rows = tiling.rows, to.tile_columns = tiling.columns;
    to.tiles_across = FastDivisor(narrow(ceil_divide(problem.output[2], tiling.columns)));
    to.tiles_down = FastDivisor(narrow(ceil_divide(problem.output[1], tiling.rows)));

    to.window_rows = FastDivisor(tiling.window_rows);
    to.window_loads = FastDivisor(tiling.window_loads);
    to.window_columns = FastDivisor(tiling.window_loads * tiling.together);
    to.window_left = tiling.window_left;
    to.window_pitch = tiling.window_pitch, to.window_plane = tiling.window_plane;
    to.window_words = tiling.window_words;
    walk_window(problem, tiling, to);

    to.strips_across = FastDivisor(tiling.strips_across);
    to.strip_planes = FastDivisor(tiling.planes);
    to.strips = tiling.strips, to.strip_steps = tiling.strip_steps, to.step_columns = tiling.step_columns;
    return to;
  }

  static void bind(const ConvProblem& problem, const Tiling& tiling, Arguments& to) {
    const auto aligned = static_cast<uintptr_t>(tiling.together * size_of(problem.type));
    to.is_flat = tiling.is_flat && reinterpret_cast<uintptr_t>(to.x) % aligned == 0;
  }

  static int threads(const Tiling& tiling) { return tiling.threads; }
  static int64_t shared_bytes(const Tiling& tiling) { return tiling.shared_bytes; }

  static Extents grid_of(const ConvProblem&, const Device&, const Tiling& tiling, const Launch&) {
    return {static_cast<unsigned>(tiling.blocks)};
  }

  static std::string describe(const ConvProblem&, const Tiling& tiling, const Launch& launch) {
    return "tiles of " + std::to_string(tiling.planes) + " planes x " + std::to_string(tiling.rows) + "x" +
           std::to_string(tiling.columns) + ", " + std::to_string(tiling.threads) + " threads with " +
           std::to_string(tiling.strip_steps) + " outputs " +
           (tiling.step_columns > 0 ? "along a row" : "of a column") + ", " +
           std::to_string(tiling.shared_bytes) + " bytes of shared memory, " +
           std::to_string(launch.grid.count()) + " blocks";
  }

 private:
  // How a thread's loads follow each other.
  static void walk_window(const ConvProblem& problem, const Tiling& tiling, Arguments& to) {
    to.lines_together = tiling.threads / tiling.window_loads;
    const int planes = to.lines_together / tiling.window_rows;
    const int plane = narrow(problem.input[1] * problem.input[2]), row = narrow(problem.input[2]);
    to.next_row = to.lines_together % tiling.window_rows;
    to.next_in_window = planes * tiling.window_plane + to.next_row * tiling.window_pitch;
    to.next_in_x = planes * plane + to.next_row * row;
    to.beyond_in_window = tiling.window_plane - tiling.window_rows * tiling.window_pitch;
    to.beyond_in_x = plane - tiling.window_rows * row;
  }
};

}  // namespace

std::string kernel_name(const ConvProblem& problem, const Tiling& tiling) {
  return Family::kernel_name(problem, tiling);
}

std::unique_ptr<Plan> make_plan(const ConvProblem& problem, const Device& device, const Tiling& tiling) {
  return std::make_unique<KernelPlan<Family>>(problem, device, tiling);
}

}  // namespace convswap::depthwise
