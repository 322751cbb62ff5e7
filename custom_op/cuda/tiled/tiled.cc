// Direct convolution with register tiling on CUDA cores, for problems that do not gain from tensor cores.
//
// A block computes a tile of one image's outputs for some filters of one group. It stages the tile's
// receptive field in a few channels into smem, with zeros for padding, and the weights of these channels,
// transposed so that filters are adjacent. Then each thread multiplies, with accumulators for up to 2 x 4
// pixels of 8 filters in registers: eight pixel loads and two vector loads of four weights per tap, for 64
// multiplications. Adjacent threads have adjacent pixels, so pixel loads have no bank conflicts and weight
// loads are broadcasts.
//
// Small problems have small tiles and few filters per thread, and up to eight threads share the same outputs:
// each takes a part of the filter rows (split K inside the block). Their partial sums are reduced through
// smem. All threads then add the residual, apply activation and pool, and store. Pool windows do not cross
// tiles.
//
// Accumulators are float64 for float64 data, and float32 for all other data, in both precisions.
//
// Data flow: one kernel, no scratch memory; several blocks per multiprocessor, so that some stage while
// others multiply.
//
// With three spatial axes, each output plane is computed like an image, and the input plane that one tap
// along the depth reads counts as a channel.
//
// Limits: pool windows of 1, 2 or 4 outputs along each axis, adjacent and without padding; any other pool is
// a second kernel. Padding is multiplied as zeros, so an infinite weight over padding gives NaN.

#include <string>
#include <utility>
#include <vector>

#include "conv/arithmetic.h"
#include "cuda/host/algorithm_by_tiling.h"
#include "cuda/host/formats.h"
#include "cuda/host/kernel_plan.h"
#include "cuda/host/limits.h"
#include "cuda/host/text.h"
#include "cuda/tiled/arguments.h"
#include "cuda/tiled/family.h"

namespace convswap {
namespace tiled {
namespace {

std::vector<std::string> all_instances() {
  constexpr std::string_view kFloat64[] = {"double"};
  std::vector<std::string> names = instance_names("tiled::kernel", kElementsWithoutFloat64, kInstances);
  for (std::string& name : instance_names("tiled::kernel", kFloat64, kFloat64Instances)) {
    names.push_back(std::move(name));
  }
  return names;
}

const KernelRegistration registration({.header = "cuda/tiled/kernel.cuh", .instances = all_instances()});

struct Family {
  using Tiling = tiled::Tiling;
  using Arguments = tiled::Arguments<void>;
  static std::string name(const Tiling&) { return "tiled"; }

  static std::string kernel_name(const ConvProblem& problem, const Tiling& tiling) {
    return instance_name("tiled::kernel", element_name(problem.type),
                         Instance{tiling.thread_filters, tiling.thread_columns}.arguments());
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
    to.rows = tiling.rows, to.columns = tiling.columns, to.block_filters = tiling.filters;
    to.channels_per_stage = tiling.channels, to.splits = tiling.splits;
    to.tiles_down = tiles_over(problem.output[1], tiling.rows);
    to.tiles_across = tiles_over(problem.output[2], tiling.columns);
    to.filter_blocks = tiles_over(problem.filters_per_group(), tiling.filters);
    to.threads_across = FastDivisor(tiling.columns / tiling.thread_columns);
    to.threads_per_filter_tile = FastDivisor(tiling.rows / 2 * to.threads_across.divisor);
    to.threads_across_filters = FastDivisor(tiling.filters / tiling.thread_filters);
    to.window_width = FastDivisor(tiling.window_width);
    to.window_size = FastDivisor(tiling.window_height * tiling.window_width);
    to.window_pitch = tiling.window_pitch, to.window_plane = tiling.window_plane;
    to.weight_pitch = tiling.weight_pitch;
    to.filter_quads = FastDivisor(narrow(ceil_divide(tiling.filters, 4)));
    to.filter_height_divisor = FastDivisor(to.filter_height);
    to.tile_y_rows = tiling.rows / narrow(problem.epilogue.pool.kernel[0]);
    const int y_columns = tiling.columns / narrow(problem.epilogue.pool.kernel[1]);
    to.tile_y_columns = FastDivisor(y_columns), to.tile_y_plane = FastDivisor(to.tile_y_rows * y_columns);
    return to;
  }

  static int threads(const Tiling& tiling) { return tiling.threads; }
  static int64_t shared_bytes(const Tiling& tiling) { return tiling.shared_bytes; }

  static Dim3 grid_of(const ConvProblem& problem, const Device&, const Tiling& tiling, const Launch&) {
    const int64_t tiles = problem.batch * problem.output[0] * ceil_divide(problem.output[1], tiling.rows) *
                          ceil_divide(problem.output[2], tiling.columns);
    return {static_cast<unsigned>(tiles),
            static_cast<unsigned>(problem.group * ceil_divide(problem.filters_per_group(), tiling.filters))};
  }

  static std::string describe(const ConvProblem&, const Tiling& t, const Launch& launch) {
    return joined("tiles of ", t.rows, "x", t.columns, " x ", t.filters, " filters, ", t.channels,
                  " channels at a time, ", t.threads, " threads of 2x", t.thread_columns, " x ",
                  t.thread_filters, " outputs", t.splits > 1 ? joined(", each shared by ", t.splits) : "",
                  ", ", t.shared_bytes, " bytes of shared memory, ", launch.grid.total(), " blocks");
  }
};

bool pools_inside_tiles(const Pool& pool) {
  for (int axis = 0; axis < 2; ++axis) {
    const int64_t extent = pool.kernel[axis];
    if (extent != 1 && extent != 2 && extent != 4) return false;
    if (pool.stride[axis] != extent || pool.pad_begin[axis] != 0 || pool.pad_end[axis] != 0) return false;
  }
  return true;
}

class Tiled final : public AlgorithmByTiling<KernelPlan<Family>, best_of<search>, all_of<search>> {
 public:
  std::string_view name() const override { return "tiled"; }

  bool fuses(const ConvProblem& problem) const override { return pools_inside_tiles(problem.epilogue.pool); }

 private:
  std::string why_no_tiling(const ConvProblem&, const Device& device) const override {
    return why_not_shared_memory("its smallest tile, one channel of a filter's window, does", device);
  }

  std::string why_not_at_all(const ConvProblem& problem, const Device&) const override {
    if (std::string reason = why_not_sizes(problem); !reason.empty()) return reason;
    std::string too_far = why_not_32_bit_indices(
        {problem.in_channels * problem.input_size(), problem.out_channels * problem.output_size(),
         problem.batch * problem.output_size(), problem.channels_per_group() * problem.filter_size() * 64,
         padded_input(problem, 0) + problem.dilation[0] * problem.filter[0], padded_input(problem, 1),
         padded_input(problem, 2)});
    if (!too_far.empty()) return too_far;
    // The grid has a row for every block of filters.
    if (problem.out_channels > kMaxGridRows) {
      return joined("it takes at most ", kMaxGridRows, " filters");
    }
    return {};
  }
};

}  // namespace
}  // namespace tiled

const Algorithm& cuda_tiled() {
  static const tiled::Tiled algorithm;
  return algorithm;
}

}  // namespace convswap
