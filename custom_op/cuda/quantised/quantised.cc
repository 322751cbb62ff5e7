// Convolution of quantised data on any card: one thread per output element, which loops over taps and channels
// and reads every operand from global memory through the caches.
//
// It computes every problem of codes: any rank, size, stride, padding, dilation and grouping, every epilogue,
// tensors in any layout. The planner takes it where no faster algorithm for codes computes the problem.

#include <algorithm>
#include <string>
#include <vector>

#include "conv/arithmetic.h"
#include "cuda/costs/cost_table.h"
#include "cuda/host/algorithm_by_tiling.h"
#include "cuda/host/arguments.h"
#include "cuda/host/estimate.h"
#include "cuda/host/formats.h"
#include "cuda/host/kernel_plan.h"
#include "cuda/host/text.h"
#include "cuda/quantised/arguments.h"

namespace convswap {
namespace quantised {
namespace {

// More blocks than any card holds at once; the kernel's grid-stride loop covers the remaining elements.
constexpr int64_t kMaxBlocks = 1 << 20;

const KernelRegistration registration({.header = "cuda/quantised/kernel.cuh",
                                       .instances = instance_names("quantised::kernel", kCodes)});

struct Tiling {
  double cost = 0;  // nanoseconds, estimated
};

struct Family {
  using Tiling = quantised::Tiling;
  using Arguments = quantised::Arguments<void>;
  static std::string name(const Tiling&) { return "quantised"; }

  static std::string kernel_name(const ConvProblem& problem, const Tiling&) {
    return instance_name("quantised::kernel", element_name(problem.type));
  }

  static Arguments arguments_of(const ConvProblem& problem, const Device&, const Tiling&) {
    Arguments to{};
    to.conv = naive_quantised_conv_of(problem);
    to.outputs = problem.result_elements();
    return to;
  }

  static void bind(const ConvProblem&, const Tiling&, const ConvTensors& tensors, Arguments& arguments) {
    bind_tensors(tensors, arguments.conv);
  }

  static int threads(const Tiling&) { return kThreads; }
  static int64_t shared_bytes(const Tiling&) { return 0; }

  static Dim3 grid_of(const ConvProblem& problem, const Device&, const Tiling&, const Launch&) {
    return {static_cast<unsigned>(
        std::min(kMaxBlocks, ceil_divide(problem.result_elements(), int64_t{kThreads})))};
  }

  static std::string describe(const ConvProblem&, const Tiling&, const Launch& launch) {
    return joined(launch.grid.x, " blocks of ", kThreads, " threads, one output each");
  }
};

double cost_of(const ConvProblem& problem, const Device& device, const Tiling&) {
  const auto& costs = costs_of(device).quantised;
  const double products = to_double(problem.operations()) / 2;
  const double computing = products * costs.product / 1e3 / std::max(1, device.multiprocessors);
  return costs.launch + overlapped({computing, to_double(problem.tensor_bytes()) / costs.memory});
}

std::vector<Tiling> tilings_of(const ConvProblem& problem, const Device& device) {
  return {Tiling{cost_of(problem, device, {})}};
}

class Quantised final : public AlgorithmByTiling<KernelPlan<Family>, tilings_of> {
 public:
  std::string_view name() const override { return "quantised"; }
  bool takes_layouts(const ConvProblem&) const override { return true; }
  bool takes_codes() const override { return true; }

 private:
  std::string why_not_at_all(const ConvProblem& problem, const Device&) const override {
    return problem.is_quantised() ? "" : "it takes int8 and uint8 codes";
  }
};

}  // namespace
}  // namespace quantised

const Algorithm& cuda_quantised() {
  static const quantised::Quantised algorithm;
  return algorithm;
}

}  // namespace convswap
