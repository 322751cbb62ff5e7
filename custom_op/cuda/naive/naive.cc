// Naive direct convolution: one thread per output element, which loops over channels and taps and reads every
// operand from global memory through the caches.
//
// It computes every problem: any type, rank, size, stride, padding, dilation and grouping. Accumulators are
// float64 for float64 data, and float32 for all other data, in both precisions. The epilogue is fused: a
// thread computes all values of its pool window. If pool windows overlap, the pool is a second kernel. The
// planner takes `naive` if no other algorithm supports the problem.

#include <algorithm>
#include <string>
#include <vector>

#include "conv/arithmetic.h"
#include "cuda/host/algorithm_by_tiling.h"
#include "cuda/host/arguments.h"
#include "cuda/host/formats.h"
#include "cuda/host/kernel_plan.h"
#include "cuda/host/text.h"
#include "cuda/naive/arguments.h"
#include "plan/epilogue_stage.h"

namespace convswap {
namespace naive {
namespace {

constexpr int kThreads = 256;
// More blocks than any card holds at once; the kernel's grid-stride loop covers the remaining elements.
constexpr int64_t kMaxBlocks = 1 << 20;

const KernelRegistration registration({.header = "cuda/naive/kernel.cuh",
                                       .instances = instance_names("naive::kernel", kElements)});

struct Family {
  struct Tiling {};
  using Arguments = naive::Arguments<void>;
  static std::string name(const Tiling&) { return "naive"; }

  static std::string kernel_name(const ConvProblem& problem, Tiling) {
    return instance_name("naive::kernel", element_name(problem.type));
  }

  static Arguments arguments_of(const ConvProblem& problem, const Device&, Tiling) {
    Arguments to{};
    to.naive_conv = naive_conv_of(problem);
    to.outputs = problem.result_elements();
    return to;
  }

  static int threads(Tiling) { return kThreads; }
  static int64_t shared_bytes(Tiling) { return 0; }

  static Dim3 grid_of(const ConvProblem& problem, const Device&, Tiling, const Launch&) {
    return {static_cast<unsigned>(std::min(kMaxBlocks, ceil_divide(problem.result_elements(), kThreads)))};
  }

  static std::string describe(const ConvProblem&, Tiling, const Launch& launch) {
    return joined(launch.grid.x, " blocks of ", kThreads, " threads, one output each");
  }
};

// One tiling without an estimate: the planner takes it if no other algorithm supports the problem.
std::vector<Family::Tiling> tilings_of(const ConvProblem&, const Device&) { return {Family::Tiling{}}; }

bool windows_overlap(const Pool& pool) {
  return pool.kernel[0] > pool.stride[0] || pool.kernel[1] > pool.stride[1];
}

class Naive final : public AlgorithmByTiling<KernelPlan<Family>, tilings_of> {
 public:
  std::string_view name() const override { return "naive"; }

  // If pool windows overlap, threads would compute the values that their windows share again.
  bool fuses(const ConvProblem& problem) const override {
    return !windows_overlap(problem.epilogue.pool) ||
           !epilogue_stage(DeviceKind::cuda)->why_not(problem).empty();
  }
};

}  // namespace
}  // namespace naive

const Algorithm& cuda_naive() {
  static const naive::Naive algorithm;
  return algorithm;
}

}  // namespace convswap
