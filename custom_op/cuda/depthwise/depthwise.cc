// Depthwise convolution, where memory is the limit: each filter sees one channel, so that there is nothing
// for the tensor cores to share.
//
// A block computes a tile of some output planes. It brings the part of x that these need, the window, to
// shared memory, as float32 and with zeros where the image ends, so that what follows has no borders; up to
// four columns a load, several loads of a thread under way. Then each thread computes a column of outputs,
// one after the other, with the filter in registers. Of unit stride it slides down: an input row is read
// once, and added to all output rows that it is part of, whose sums are under way; a 7x7 filter takes 7 loads
// and 49 multiplications an output. Other strides and dilations read all taps of each output again. Rows of
// 1-D data are walked along instead, outputs of a thread as far apart as there are threads side by side.
//
// Small images are computed several planes at a time; what lies in memory side by side is loaded together.
//
// Sums are float32 in either precision, as the default provider's are: nothing is rounded but the result.
// Residual and activation are computed where results are written.
//
// Data flow: one kernel, no scratch memory; several blocks on a multiprocessor, of which one loads while
// others compute.
//
// Limits: float32, float16 and bfloat16; one channel of a group, with any number of filters; any filter of up
// to three dimensions whose smallest window fits into shared memory, those of kInstances with taps that the
// compiler knows, others in a loop. A pool is a second kernel. Padding is zeros that are multiplied like
// data, so that an infinite weight over padding gives NaN.

#include <cstdint>
#include <string>

#include "conv/arithmetic.h"
#include "cuda/depthwise/arguments.h"
#include "cuda/depthwise/family.h"
#include "cuda/host/algorithm_by_tiling.h"
#include "cuda/host/arguments.h"
#include "cuda/host/formats.h"
#include "cuda/host/kernel_plan.h"
#include "cuda/host/limits.h"
#include "cuda/host/text.h"

namespace convswap {
namespace depthwise {
namespace {

const KnownKernels known({.header = "cuda/depthwise/kernel.cuh",
                          .instances = instance_names("depthwise::kernel", kElementsButFloat64, kInstances)});

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
    to.following = epilogue_params_of(problem.epilogue);

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
    to.is_flat = tiling.is_flat && is_aligned(to.x, problem, tiling.together);
  }

  static int threads(const Tiling& tiling) { return tiling.threads; }
  static int64_t shared_bytes(const Tiling& tiling) { return tiling.shared_bytes; }

  static Dim3 grid_of(const ConvProblem&, const Device&, const Tiling& tiling, const Launch&) {
    return {static_cast<unsigned>(tiling.blocks)};
  }

  static std::string describe(const ConvProblem&, const Tiling& tiling, const Launch& launch) {
    return joined("tiles of ", tiling.planes, " planes x ", tiling.rows, "x", tiling.columns, ", ",
                  tiling.threads, " threads with ", tiling.strip_steps, " outputs ",
                  tiling.step_columns > 0 ? "along a row" : "of a column", ", ", tiling.shared_bytes,
                  " bytes of shared memory, ", launch.grid.count(), " blocks");
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

class Depthwise final : public AlgorithmByTiling<KernelPlan<Family>, best_tiling> {
 public:
  std::string_view name() const override { return "depthwise"; }

  bool fuses(const ConvProblem& problem) const override {
    return problem.epilogue.pool.kind == PoolKind::none;
  }

 private:
  std::string why_no_tiling(const ConvProblem&, const Device& device) const override {
    return why_not_fitting("its smallest tile, a filter's reach, does", device);
  }

  std::string why_not_at_all(const ConvProblem& problem, const Device&) const override {
    if (std::string reason = why_not_depthwise(problem); !reason.empty()) return reason;
    return why_not_indexed({problem.batch * problem.out_channels * problem.output[0],
                            16 * problem.input[1] * problem.input[2], problem.output[1] * problem.output[2],
                            problem.filter_size() * 16,
                            padded_input(problem, 0) + problem.dilation[0] * problem.filter[0],
                            padded_input(problem, 1), padded_input(problem, 2)});
  }
};

}  // namespace
}  // namespace depthwise

const Algorithm& cuda_depthwise() {
  static const depthwise::Depthwise algorithm;
  return algorithm;
}

}  // namespace convswap
