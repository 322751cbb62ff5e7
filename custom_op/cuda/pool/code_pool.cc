// The pool of a convolution of codes, as a kernel behind the convolution's. The code of a number grows with
// the number, so the maximum of codes is the code of the maximum.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "conv/pool_problem.h"
#include "cuda/costs/cost_table.h"
#include "cuda/host/estimate.h"
#include "plan/epilogue_stage.h"
#include "plan/op_stage.h"

namespace convswap {

const PoolStage& cuda_pool_stage();

namespace {

constexpr int64_t kMaxImage = 1 << 29;   // elements
constexpr int64_t kMaxWindow = 1 << 20;  // of a kernel, a stride and padding
constexpr int64_t kVectorChannels = 16;

// The images of all depths are images of the pool.
PoolProblem pool_of(const ConvProblem& problem) {
  return {.type = problem.y_type,
          .pool = problem.epilogue.pool,
          .batch = problem.batch * problem.output[0],
          .channels = problem.out_channels,
          .input = {problem.output[1], problem.output[2]},
          .output = {problem.result[1], problem.result[2]}};
}

class CodePoolStage final : public EpilogueStage {
 public:
  std::string why_not(const ConvProblem& problem) const override {
    const Pool& pool = problem.epilogue.pool;
    if (!is_code(problem.y_type)) return "its pooling kernel takes codes";
    if (pool.kind != PoolKind::max) return "its pooling kernel of codes computes maxima alone";
    if (problem.layouts.output != Layout::nhwc) return "its pooling kernel of codes takes NHWC";
    if (problem.result_elements() == 0) return "the output is empty";
    const int64_t positions =
        std::max(problem.output[1] * problem.output[2], problem.result[1] * problem.result[2]);
    int64_t window = 0;
    for (int axis = 0; axis < 2; ++axis) {
      window =
          std::max({window, pool.kernel[axis], pool.stride[axis], pool.pad_begin[axis], pool.pad_end[axis]});
    }
    if (positions > kMaxImage / problem.out_channels || window > kMaxWindow ||
        problem.batch * problem.output[0] > kMaxImage) {
      return "its pooling kernel has 32-bit indices inside an image and the problem needs more";
    }
    return {};
  }

  double estimate(const ConvProblem& problem, const Device& device) const override {
    const auto& costs = costs_of(device).epilogue;
    const Pool& pool = problem.epilogue.pool;
    const double bytes = to_double(problem.output_elements() + problem.result_elements());
    const double vector = problem.out_channels % kVectorChannels == 0 ? to_double(kVectorChannels) : 1;
    const double window = (costs.window + costs.input * to_double(pool.kernel[0] * pool.kernel[1])) / vector;
    return 1e-6 * (costs.launch + bytes / costs.memory + costs.pool +
                   to_double(problem.result_elements()) * window / std::max(1, device.multiprocessors));
  }

  std::unique_ptr<Plan> make(const ConvProblem& problem, const Device& device) const override {
    return cuda_pool_stage().make(pool_of(problem), device);
  }

  std::vector<std::string> kernels(const ConvProblem& problem, const Device& device) const override {
    return cuda_pool_stage().kernels(pool_of(problem), device);
  }
};

}  // namespace

const EpilogueStage& cuda_code_pool_stage() {
  static const CodePoolStage stage;
  return stage;
}

}  // namespace convswap
