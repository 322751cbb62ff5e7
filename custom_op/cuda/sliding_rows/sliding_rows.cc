// Depthwise convolution of images without shared memory: rows of x slide through the registers of a warp.
//
// A lane has a piece of a row, four columns or fewer, and goes down the image. It loads its piece, asks its
// neighbours in the warp for the columns beyond the ends, and adds the row to the sums of all output rows
// that it is part of; one of these is whole then, and is written. So each number of x is loaded once, but for
// the first rows of a strip; nothing is stored and read again, no thread waits for another, and three
// quarters of the instructions are multiplications. Rows are asked for some rows ahead of their use.
//
// Where rows are short, several planes lie side by side in a warp. Where they have more pieces than a warp
// has lanes, the row is cut into segments that overlap by what neighbours need to know.
//
// Sums are float32 in either precision, as the default provider's are: nothing is rounded but the result.
// Residual and activation are computed where results are written.
//
// Data flow: one kernel, no scratch memory, no shared memory.
//
// Limits: float32, float16 and bfloat16; images; one channel of a group, with any number of filters; the
// filters of kInstances, undilated. A pool is a second kernel. Padding is zeros that are multiplied like
// data, so that an infinite weight over padding gives NaN.

#include <string>
#include <vector>

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

const KnownKernels known({.header = "cuda/sliding_rows/kernel.cuh",
                          .instances = instance_names("sliding_rows::kernel", kElementsButFloat64,
                                                      kInstances)});

struct Family {
  using Tiling = sliding_rows::Tiling;
  using Arguments = sliding_rows::Arguments<void>;
  static std::string name(const Tiling&) { return "sliding_rows"; }

  static std::string kernel_name(const ConvProblem& problem, const Tiling& tiling) {
    return instance_name("sliding_rows::kernel", element_name(problem.type), tiling.instance.arguments());
  }

  static Arguments arguments_of(const ConvProblem& problem, const Device&, const Tiling& tiling) {
    Arguments to{};
    to.following = epilogue_params_of(problem.epilogue);
    to.input_height = narrow(problem.input[1]), to.input_width = narrow(problem.input[2]);
    to.output_height = narrow(problem.output[1]), to.output_width = narrow(problem.output[2]);
    to.pad_height = narrow(problem.pad_begin[1]);
    to.planes = narrow(problem.batch * problem.out_channels);
    to.image_filters = FastDivisor(narrow(problem.out_channels));
    to.multiplier = FastDivisor(narrow(problem.filters_per_group()));
    to.lanes = FastDivisor(tiling.lanes);
    to.warp_planes = tiling.warp_planes;
    to.segments = FastDivisor(tiling.segments);
    to.segment_pieces = tiling.segment_pieces;
    to.strips = FastDivisor(tiling.strips);
    to.strip_rows = tiling.strip_rows;
    return to;
  }

  static void bind(const ConvProblem& problem, const Tiling& tiling, Arguments& to) {
    to.loads_together = is_aligned(to.x, problem, tiling.instance.together);
    to.stores_together = problem.output[2] % tiling.instance.outputs == 0 &&
                         is_aligned(to.y, problem, tiling.instance.outputs);
  }

  static int threads(const Tiling&) { return kBlockWarps * kWarp; }
  static int64_t shared_bytes(const Tiling&) { return 0; }

  static Dim3 grid_of(const ConvProblem&, const Device&, const Tiling& tiling, const Launch&) {
    return {static_cast<unsigned>(tiling.blocks)};
  }

  static std::string describe(const ConvProblem&, const Tiling& tiling, const Launch& launch) {
    const Instance& own = tiling.instance;
    return joined("warps of ", tiling.warp_planes, " planes x ", tiling.strip_rows, " rows, ", tiling.lanes,
                  " lanes of ", own.outputs, " columns each, ", own.together, " columns a load, ",
                  launch.grid.count(), " blocks of ", kBlockWarps, " warps");
  }
};

std::vector<Tiling> tilings_for(const ConvProblem& problem, const Device& device) {
  return tilings_of(problem, device, *instance_for(problem));
}

class SlidingRows final : public AlgorithmByTiling<KernelPlan<Family>, tilings_for> {
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
             "one "
             "column less";
    }
    // Rows of x are counted from a strip's first up to some that are asked for and not there.
    return why_not_indexed({problem.batch * problem.out_channels, 2 * padded_input(problem, 2),
                            (padded_input(problem, 1) + kMostAhead) * problem.input[2],
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
