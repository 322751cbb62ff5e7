// Depthwise convolution of images in registers: rows of x slide through a warp, without shared memory.
//
// A lane has a piece of each row, up to four columns, and walks down the image. It loads its piece, shuffles
// halo columns from its neighbours in the warp, and adds the row to the accumulators of all output rows that
// the row contributes to. The row completes one of them, which is stored. So each element of x is loaded
// once, except the rows that adjacent strips share. There is no smem traffic and no barrier, and three
// quarters of the instructions are multiplications. Rows are prefetched into registers.
//
// Short rows of several planes share a warp. A row with more pieces than a warp has lanes is cut into
// segments that overlap by the halo.
//
// Accumulators are float32 in precisions tf32 and ieee, as in ONNX Runtime's CUDA provider; only the result
// is rounded. Residual and activation are computed before the store.
//
// Data flow: one kernel, no scratch memory, no shared memory.
//
// Limits: float32, float16 and bfloat16; two spatial axes; one channel per group, with any number of filters;
// the filters of kInstances, without dilation. A pool is a second kernel. Padding is multiplied as zeros, so
// an infinite weight over padding gives NaN.

#include <string>

#include "cuda/host/algorithm_by_tiling.h"
#include "cuda/host/arguments.h"
#include "cuda/host/formats.h"
#include "cuda/host/kernel_plan.h"
#include "cuda/host/limits.h"
#include "cuda/host/text.h"
#include "cuda/sliding_rows/arguments.h"
#include "cuda/sliding_rows/family.h"

namespace convswap {
namespace sliding_rows {
namespace {

const KernelRegistration registration({.header = "cuda/sliding_rows/kernel.cuh",
                                       .instances = instance_names("sliding_rows::kernel",
                                                                   kElementsWithoutFloat64, kInstances)});

struct Family {
  using Tiling = sliding_rows::Tiling;
  using Arguments = sliding_rows::Arguments<void>;
  static std::string name(const Tiling&) { return "sliding_rows"; }

  static std::string kernel_name(const ConvProblem& problem, const Tiling& tiling) {
    return instance_name("sliding_rows::kernel", element_name(problem.type), tiling.instance.arguments());
  }

  static Arguments arguments_of(const ConvProblem& problem, const Device&, const Tiling& tiling) {
    Arguments to{};
    to.epilogue = epilogue_params_of(problem.epilogue);
    to.input_height = narrow(problem.input[1]), to.input_width = narrow(problem.input[2]);
    to.output_height = narrow(problem.output[1]), to.output_width = narrow(problem.output[2]);
    to.pad_height = narrow(problem.pad_begin[1]);
    to.planes = narrow(problem.batch * problem.out_channels);
    to.filters_per_image = FastDivisor(narrow(problem.out_channels));
    to.filters_per_channel = FastDivisor(narrow(problem.filters_per_group()));
    to.lanes = FastDivisor(tiling.lanes);
    to.warp_planes = tiling.warp_planes;
    to.segments = FastDivisor(tiling.segments);
    to.segment_pieces = tiling.segment_pieces;
    to.strips = FastDivisor(tiling.strips);
    to.strip_rows = tiling.strip_rows;
    return to;
  }

  static void bind(const ConvProblem& problem, const Tiling& tiling, Arguments& to) {
    to.vectorizes_loads = is_aligned(to.x, problem, tiling.instance.vector_columns);
    to.vectorizes_stores = problem.output[2] % tiling.instance.outputs == 0 &&
                           is_aligned(to.y, problem, tiling.instance.outputs);
  }

  static int threads(const Tiling&) { return kWarpsPerBlock * kWarpSize; }
  static int64_t shared_bytes(const Tiling&) { return 0; }

  static Dim3 grid_of(const ConvProblem&, const Device&, const Tiling& tiling, const Launch&) {
    return {static_cast<unsigned>(tiling.blocks)};
  }

  static std::string describe(const ConvProblem&, const Tiling& tiling, const Launch& launch) {
    const Instance& instance = tiling.instance;
    return joined("warps of ", tiling.warp_planes, " planes x ", tiling.strip_rows, " rows, ", tiling.lanes,
                  " lanes of ", instance.outputs, " columns each, ", instance.vector_columns,
                  " columns a load, ", launch.grid.total(), " blocks of ", kWarpsPerBlock, " warps");
  }
};

class SlidingRows final : public AlgorithmByTiling<KernelPlan<Family>, best_of<search>, all_of<search>> {
 public:
  std::string_view name() const override { return "sliding_rows"; }

  bool fuses(const ConvProblem& problem) const override {
    return problem.epilogue.pool.kind == PoolKind::none;
  }

 private:
  std::string why_not_at_all(const ConvProblem& problem, const Device&) const override {
    if (std::string reason = why_not_depthwise(problem); !reason.empty()) return reason;
    if (instance_for(problem) == nullptr) {
      return "it computes images with undilated filters of 3x3, 5x5 or 7x7 taps, the same stride of 1 or 2 "
             "on both axes, and half a filter of padding on the left, or with stride 2 and up to 5x5 taps "
             "one column less";
    }
    // Row indices include the rows that are prefetched beyond the end of a strip.
    return why_not_32_bit_indices({problem.batch * problem.out_channels, 2 * padded_input(problem, 2),
                                   (padded_input(problem, 1) + kMaxPrefetchedRows) * problem.input[2],
                                   problem.output[1] * problem.output[2]});
  }
};

}  // namespace
}  // namespace sliding_rows

const Algorithm& cuda_sliding_rows() {
  static const sliding_rows::SlidingRows algorithm;
  return algorithm;
}

}  // namespace convswap
