#pragma once

#include <memory>
#include <string>
#include <vector>

#include "conv/pool_problem.h"
#include "plan/algorithm.h"

namespace convswap {

// Computes the op LayoutPool on a kind of device.
class PoolStage {
 public:
  virtual ~PoolStage() = default;

  // Makes a plan that reads `x` of its tensors and writes `y`, both NHWC; y has elements. Throws
  // InvalidArgument for a problem that is too large for the kernel.
  virtual std::unique_ptr<Plan> make(const PoolProblem& problem, const Device& device) const = 0;

  // The kernel instances that its plan launches, as in Offer::kernels.
  virtual std::vector<std::string> kernels(const PoolProblem& problem, const Device& device) const = 0;
};

// The pool stage of a kind of device.
const PoolStage& pool_stage(DeviceKind kind);

}  // namespace convswap
