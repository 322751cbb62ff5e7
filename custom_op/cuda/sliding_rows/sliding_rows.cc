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
#include <utility>
#include <vector>

#include "cuda/host/limits.h"
#include "cuda/sliding_rows/plan.h"
#include "cuda/sliding_rows/slide.h"

namespace convswap {
namespace sliding_rows {
namespace {

class SlidingRows final : public Algorithm {
 public:
  std::string_view name() const override { return "sliding_rows"; }
  DeviceKind device_kind() const override { return DeviceKind::cuda; }

  bool fuses(const ConvProblem& problem) const override {
    return problem.epilogue.pool.kind == PoolKind::none;
  }

  Offer offer(const ConvProblem& problem, const Device& device) const override {
    if (std::string reason = why_not_at_all(problem); !reason.empty()) {
      return Offer::refusal(std::move(reason));
    }
    const Instance* const instance = instance_for(problem);
    if (instance == nullptr) {
      return Offer::refusal(
          "it computes images with undilated filters of 3x3, 5x5 or 7x7 taps, the same stride of 1 or 2 on "
          "both axes, "
          "and half a filter of padding on the left, or with stride 2 and up to 5x5 taps one column less");
    }
    return offer_of(problem, tilings_of(problem, device, *instance).front(), device);
  }

  std::vector<Offer> alternatives(const ConvProblem& problem, const Device& device,
                                  std::size_t most) const override {
    const Instance* const instance = why_not_at_all(problem).empty() ? instance_for(problem) : nullptr;
    std::vector<Offer> offers;
    if (instance == nullptr) return offers;
    for (const Tiling& tiling : tilings_of(problem, device, *instance)) {
      if (offers.size() < most) offers.push_back(offer_of(problem, tiling, device));
    }
    return offers;
  }

 private:
  static Offer offer_of(const ConvProblem& problem, const Tiling& tiling, const Device& device) {
    return {{},
            tiling.cost * 1e-6,
            [problem, device, tiling] { return sliding_rows::make_plan(problem, device, tiling); },
            [problem, tiling] { return std::vector{sliding_rows::kernel_name(problem, tiling)}; }};
  }

  static std::string why_not_at_all(const ConvProblem& problem) {
    if (std::string reason = why_not_depthwise(problem); !reason.empty()) return reason;
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
