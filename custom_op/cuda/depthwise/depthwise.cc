// Depthwise convolution in shared memory. Each filter sees one channel, so tensor cores would reuse no
// operand; memory bandwidth is the limit.
//
// A block computes a tile of some output planes. It loads the tile's receptive field, the window, into smem
// as float32, with zeros for padding, so the arithmetic has no border cases. A load takes up to four columns,
// and each thread has several loads in flight. Then each thread computes a column of outputs, one after the
// other, with the filter in registers. With unit stride and dilation, the thread reads each input row once
// and adds it to the accumulators of all output rows that it contributes to: a 7x7 filter takes 7 smem loads
// and 49 multiplications per output. With other strides and dilations, each output reads all of its taps.
// For 1-D data a thread computes outputs along the row; adjacent threads compute adjacent outputs.
//
// Small images share a tile: several planes, whose rows are contiguous in memory and loaded together.
//
// Accumulators are float32 in precisions tf32 and ieee, as in ONNX Runtime's CUDA provider; only the result
// is rounded. Residual and activation are computed before the store.
//
// Data flow: one kernel, no scratch memory; several blocks per multiprocessor, so that some load while others
// compute.
//
// Limits: float32, float16 and bfloat16; one channel per group, with any number of filters; up to three
// spatial axes; the window of the smallest tile must fit into smem. Filters of kInstances have taps that
// the compiler unrolls; others are loops. A pool is a second kernel. Padding is multiplied as zeros, so an
// infinite weight over padding gives NaN.

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

const KernelRegistration registration({.header = "cuda/depthwise/kernel.cuh",
                                       .instances = instance_names("depthwise::kernel",
                                                                   kElementsWithoutFloat64, kInstances)});

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
    to.epilogue = epilogue_params_of(problem.epilogue);

    to.planes = narrow(problem.batch * problem.out_channels * problem.output[0]);
    to.output_depth = FastDivisor(narrow(problem.output[0]));
    to.filters_per_image = FastDivisor(narrow(problem.out_channels));
    to.filters_per_channel = FastDivisor(narrow(problem.filters_per_group()));
    to.filter_depth = narrow(problem.filter[0]);
    to.input_depth = narrow(problem.input[0]);
    to.stride_depth = narrow(problem.stride[0]);
    to.dilation_depth = narrow(problem.dilation[0]);
    to.pad_depth = narrow(problem.pad_begin[0]);
    to.depth_taps = FastDivisor(narrow(problem.filter[0]));
    to.taps = FastDivisor(narrow(problem.filter_size()));
    to.vector_columns = tiling.vector_columns;

    to.block_planes = tiling.planes;
    to.tile_rows = tiling.rows, to.tile_columns = tiling.columns;
    to.tiles_across = FastDivisor(narrow(ceil_divide(problem.output[2], tiling.columns)));
    to.tiles_down = FastDivisor(narrow(ceil_divide(problem.output[1], tiling.rows)));

    to.window_rows = FastDivisor(tiling.window_rows);
    to.window_loads = FastDivisor(tiling.window_loads);
    to.window_columns = FastDivisor(tiling.window_loads * tiling.vector_columns);
    to.alignment_columns = tiling.alignment_columns;
    to.window_pitch = tiling.window_pitch, to.window_plane = tiling.window_plane;
    to.window_words = tiling.window_words;
    set_line_steps(problem, tiling, to);

    to.strips_across = FastDivisor(tiling.strips_across);
    to.strip_planes = FastDivisor(tiling.planes);
    to.strips = tiling.strips, to.strip_outputs = tiling.strip_outputs, to.column_step = tiling.column_step;
    return to;
  }

  static void bind(const ConvProblem& problem, const Tiling& tiling, Arguments& to) {
    to.is_contiguous = tiling.is_contiguous && is_aligned(to.x, problem, tiling.vector_columns);
  }

  static int threads(const Tiling& tiling) { return tiling.threads; }
  static int64_t shared_bytes(const Tiling& tiling) { return tiling.shared_bytes; }

  static Dim3 grid_of(const ConvProblem&, const Device&, const Tiling& tiling, const Launch&) {
    return {static_cast<unsigned>(tiling.blocks)};
  }

  static std::string describe(const ConvProblem&, const Tiling& tiling, const Launch& launch) {
    return joined("tiles of ", tiling.planes, " planes x ", tiling.rows, "x", tiling.columns, ", ",
                  tiling.threads, " threads with ", tiling.strip_outputs, " outputs ",
                  tiling.column_step > 0 ? "along a row" : "of a column", ", ", tiling.shared_bytes,
                  " bytes of shared memory, ", launch.grid.total(), " blocks");
  }

 private:
  // Steps between the lines of the window that a thread loads.
  static void set_line_steps(const ConvProblem& problem, const Tiling& tiling, Arguments& to) {
    to.line_step = tiling.threads / tiling.window_loads;
    const int planes = to.line_step / tiling.window_rows;
    const int plane = narrow(problem.input[1] * problem.input[2]), row = narrow(problem.input[2]);
    to.row_step = to.line_step % tiling.window_rows;
    to.window_step = planes * tiling.window_plane + to.row_step * tiling.window_pitch;
    to.x_step = planes * plane + to.row_step * row;
    to.window_plane_gap = tiling.window_plane - tiling.window_rows * tiling.window_pitch;
    to.x_plane_gap = plane - tiling.window_rows * row;
  }
};

class Depthwise final : public AlgorithmByTiling<KernelPlan<Family>, best_tiling, cheapest_tilings> {
 public:
  std::string_view name() const override { return "depthwise"; }

  bool fuses(const ConvProblem& problem) const override {
    return problem.epilogue.pool.kind == PoolKind::none;
  }

 private:
  std::string why_no_tiling(const ConvProblem&, const Device& device) const override {
    return why_not_shared_memory("its smallest tile, a filter's window, does", device);
  }

  std::string why_not_at_all(const ConvProblem& problem, const Device&) const override {
    if (std::string reason = why_not_depthwise(problem); !reason.empty()) return reason;
    return why_not_32_bit_indices({problem.batch * problem.out_channels * problem.output[0],
                                   16 * problem.input[1] * problem.input[2],
                                   problem.output[1] * problem.output[2], problem.filter_size() * 16,
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
