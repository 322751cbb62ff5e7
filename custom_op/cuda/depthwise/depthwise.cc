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

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cuda/depthwise/plan.h"
#include "cuda/host/limits.h"

namespace convswap {
namespace depthwise {
namespace {

class Depthwise final : public Algorithm {
 public:
  std::string_view name() const override { return "depthwise"; }
  DeviceKind device_kind() const override { return DeviceKind::cuda; }

  bool fuses(const ConvProblem& problem) const override {
    return problem.epilogue.pool.kind == PoolKind::none;
  }

  Offer offer(const ConvProblem& problem, const Device& device) const override {
    if (std::string reason = why_not_at_all(problem); !reason.empty()) {
      return Offer::refusal(std::move(reason));
    }
    const std::optional<Tiling> tiling = best_tiling(problem, device);
    if (!tiling) {
      return Offer::refusal("its smallest tile, a filter's reach, does not fit into the " +
                            std::to_string(device.shared_memory_per_block) + " bytes of shared memory of " +
                            device.name);
    }
    return {{},
            tiling->cost * 1e-6,
            [problem, device, own = *tiling] { return depthwise::make_plan(problem, device, own); },
            [problem, own = *tiling] { return std::vector{depthwise::kernel_name(problem, own)}; }};
  }

 private:
  // Before a tiling is sought.
  static std::string why_not_at_all(const ConvProblem& problem) {
    if (std::string reason = why_not_depthwise(problem); !reason.empty()) return reason;
    return why_not_indexed({problem.batch * problem.out_channels * problem.output[0],
                            16 * problem.input[1] * problem.input[2], problem.output[1] * problem.output[2],
                            problem.filter_size() * 16,
                            problem.input[0] + problem.pad_begin[0] + problem.pad_end[0] +
                                problem.dilation[0] * problem.filter[0],
                            problem.input[1] + problem.pad_begin[1] + problem.pad_end[1],
                            problem.input[2] + problem.pad_begin[2] + problem.pad_end[2]});
  }
};

}  // namespace
}  // namespace depthwise

const Algorithm& cuda_depthwise() {
  static const depthwise::Depthwise algorithm;
  return algorithm;
}

}  // namespace convswap
