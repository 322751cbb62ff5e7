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

#include <memory>
#include <string>
#include <vector>

#include "cuda/host/algorithm_by_tiling.h"
#include "cuda/host/limits.h"
#include "cuda/sliding_rows/plan.h"
#include "cuda/sliding_rows/slide.h"

namespace convswap {
namespace sliding_rows {
namespace {

std::vector<Tiling> tilings_for(const ConvProblem& problem, const Device& device) {
  return tilings_of(problem, device, *instance_for(problem));
}

class SlidingRows final : public AlgorithmByTiling<tilings_for, make_plan, kernel_name> {
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
    const auto padded = [&](int axis) {
      return problem.input[axis] + problem.pad_begin[axis] + problem.pad_end[axis];
    };
    return why_not_indexed({problem.batch * problem.out_channels, 2 * padded(2),
                            (padded(1) + kMostAhead) * problem.input[2],
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
