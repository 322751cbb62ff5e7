// Tiles in shared memory, sums in registers, ordinary arithmetic: the kernel for what tensor cores do not pay
// for.
//
// A block computes a tile of one image's outputs for some filters of one group. It stages what the tile needs
// of a few channels, zeros where the image ends, and these channels' weights, filters side by side; then each
// thread multiplies, with up to 2 x 4 pixels of 8 filters in registers: for each tap eight pixels and two
// loads of four weights, and 64 multiplications. Neighbouring threads have neighbouring pixels, so that none
// of these loads meets a conflict of banks, and weights reach all of them at once.
//
// Small problems are cut finer: small tiles, few filters of a thread, and up to eight threads that share the
// same outputs, each with filter rows of its own. Their sums meet in shared memory, from which all threads
// then write: residual, activation and the pool, whose windows a tile holds whole.
//
// Sums are float32 whatever the precision, of float16 and bfloat16 data too, and float64 of float64 data.
//
// Data flow: one kernel, no scratch memory; several blocks on a multiprocessor, of which one stages while
// others multiply.
//
// Of data with a depth an output plane is an image by itself, and what a tap of the depth reads of a channel
// is a channel.
//
// Limits: a pool whose windows lie side by side without padding,
// of 1, 2 or 4 outputs each way; any other pool is a second kernel. Padding is zeros that are multiplied like
// data, so that an infinite weight over padding gives NaN.

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
  std::vector<std::string> names = instance_names("tiled::kernel", kElementsButFloat64, kInstances);
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

  static Dim3 grid_of(const ConvProblem& problem, const Device&, const Tiling& tiling, const Launch&) {
    const int64_t tiles = problem.batch * problem.output[0] * ceil_divide(problem.output[1], tiling.rows) *
                          ceil_divide(problem.output[2], tiling.columns);
    return {static_cast<unsigned>(tiles),
            static_cast<unsigned>(problem.group * ceil_divide(problem.filters_per_group(), tiling.filters))};
  }

  static std::string describe(const ConvProblem&, const Tiling& t, const Launch& launch) {
    return joined("tiles of ", t.rows, "x", t.columns, " x ", t.filters, " filters, ", t.channels,
                  " channels at a time, ", t.threads, " threads of 2x", t.columns_of_thread, " x ",
                  t.filters_of_thread, " outputs", t.splits > 1 ? joined(", each shared by ", t.splits) : "",
                  ", ", t.shared_bytes, " bytes of shared memory, ", launch.grid.count(), " blocks");
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

class Tiled final : public AlgorithmByTiling<KernelPlan<Family>, best_tiling> {
 public:
  std::string_view name() const override { return "tiled"; }

  // Any other pool is a kernel of its own.
  bool fuses(const ConvProblem& problem) const override { return pools_inside_tiles(problem.epilogue.pool); }

 private:
  std::string why_no_tiling(const ConvProblem&, const Device& device) const override {
    return why_not_fitting("its smallest tile, one channel of a filter's reach, does", device);
  }

  std::string why_not_at_all(const ConvProblem& problem, const Device&) const override {
    if (std::string reason = why_not_counted(problem); !reason.empty()) return reason;
    std::string too_far = why_not_indexed(
        {problem.in_channels * problem.input_size(), problem.out_channels * problem.output_size(),
         problem.batch * problem.output_size(), problem.channels_per_group() * problem.filter_size() * 64,
         padded_input(problem, 0) + problem.dilation[0] * problem.filter[0], padded_input(problem, 1),
         padded_input(problem, 2)});
    if (!too_far.empty()) return too_far;
    // Blocks of different filters are rows of the grid.
    if (problem.out_channels > kMostGridRows) {
      return joined("it takes at most ", kMostGridRows, " filters");
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
