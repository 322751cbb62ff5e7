#include "cuda/tiled/plan.h"

#include <string>
#include <utility>
#include <vector>

#include "conv/arithmetic.h"
#include "cuda/host/formats.h"
#include "cuda/host/kernel_plan.h"
#include "cuda/tiled/arguments.h"
#include "cuda/tiled/instances.h"

namespace convswap::tiled {
namespace {

std::vector<std::string> all_instances() {
  constexpr std::string_view kOrdinary[] = {"float", "Float16", "BFloat16"}, kFloat64[] = {"double"};
  std::vector<std::string> names = instance_names("tiled::kernel", kOrdinary, kInstances);
  for (std::string& name : instance_names("tiled::kernel", kFloat64, kFloat64Instances)) {
    names.push_back(std::move(name));
  }
  return names;
}

const KnownKernels known({.header = "cuda/tiled/kernel.cuh", .instances = all_instances()});

struct Family {
  using Tiling = tiled::Tiling;
  using Arguments = tiled::Arguments<void>;
  static std::string name(const Tiling&) { return "tiled"; }

  static std::string kernel_name(const ConvProblem& problem, const Tiling& tiling) {
    return instance_name("tiled::kernel", element_name(problem.type),
                         Instance{tiling.filters_of_thread, tiling.columns_of_thread}.arguments());
  }

  static Arguments arguments_of(const ConvProblem& problem, const Device&, const Tiling& tiling) {
    const auto tiles_over = [](int64_t extent, int of_tile) {
      return FastDivisor(narrow(ceil_divide(extent, of_tile)));
    };
    Arguments to{};
    static_cast<Geometry&>(to) = geometry_of(problem);
    to.epilogue = problem.epilogue;
    to.channels *= narrow(problem.filter[0]);
    to.has_depth = problem.spatial_rank > 2;
    to.output_depth = FastDivisor(narrow(problem.output[0]));
    to.depth_taps = FastDivisor(narrow(problem.filter[0]));
    to.input_depth = narrow(problem.input[0]);
    to.stride_depth = narrow(problem.stride[0]);
    to.dilation_depth = narrow(problem.dilation[0]);
    to.pad_depth = narrow(problem.pad_begin[0]);
    to.rows = tiling.rows, to.columns = tiling.columns, to.filters_of_block = tiling.filters;
    to.channels_at_a_time = tiling.channels, to.splits = tiling.splits;
    to.tiles_down = tiles_over(problem.output[1], tiling.rows);
    to.tiles_across = tiles_over(problem.output[2], tiling.columns);
    to.filter_blocks = tiles_over(problem.filters_per_group(), tiling.filters);
    to.threads_across = FastDivisor(tiling.columns / tiling.columns_of_thread);
    to.threads_of_filter = FastDivisor(tiling.rows / 2 * to.threads_across.divisor);
    to.filter_threads = FastDivisor(tiling.filters / tiling.filters_of_thread);
    to.window_width = FastDivisor(tiling.window_width);
    to.window_size = FastDivisor(tiling.window_height * tiling.window_width);
    to.window_pitch = tiling.window_pitch, to.window_plane = tiling.window_plane;
    to.weight_pitch = tiling.weight_pitch;
    to.filter_quads = FastDivisor(narrow(ceil_divide(tiling.filters, 4)));
    to.rows_of_filter = FastDivisor(to.filter_height);
    to.tile_y_rows = tiling.rows / narrow(problem.epilogue.pool.kernel[0]);
    const int y_columns = tiling.columns / narrow(problem.epilogue.pool.kernel[1]);
    to.tile_y_columns = FastDivisor(y_columns), to.tile_y_plane = FastDivisor(to.tile_y_rows * y_columns);
    return to;
  }

  static int threads(const Tiling& tiling) { return tiling.threads; }
  static int64_t shared_bytes(const Tiling& tiling) { return tiling.shared_bytes; }

  static Extents grid_of(const ConvProblem& problem, const Device&, const Tiling& tiling, const Launch&) {
    const int64_t tiles = problem.batch * problem.output[0] * ceil_divide(problem.output[1], tiling.rows) *
                          ceil_divide(problem.output[2], tiling.columns);
    return {static_cast<unsigned>(tiles),
            static_cast<unsigned>(problem.group * ceil_divide(problem.filters_per_group(), tiling.filters))};
  }

  static std::string describe(const ConvProblem&, const Tiling& t, const Launch& launch) {
    return "tiles of " + std::to_string(t.rows) + "x" + std::to_string(t.columns) + " x " +
           std::to_string(t.filters) + " filters, " + std::to_string(t.channels) + " channels at a time, " +
           std::to_string(t.threads) + " threads of 2x" + std::to_string(t.columns_of_thread) + " x " +
           std::to_string(t.filters_of_thread) + " outputs" +
           (t.splits > 1 ? ", each shared by " + std::to_string(t.splits) : "") + ", " +
           std::to_string(t.shared_bytes) + " bytes of shared memory, " +
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

}  // namespace convswap::tiled
