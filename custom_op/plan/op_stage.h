#pragma once

#include <memory>
#include <string>
#include <vector>

#include "conv/layer_norm_problem.h"
#include "conv/mul_problem.h"
#include "conv/pool_problem.h"
#include "plan/algorithm.h"

namespace convswap {

// Computes an op that is no convolution on a kind of device.
template <typename Problem>
class OpStage {
 public:
  virtual ~OpStage() = default;

  // Makes a plan that reads `x` of its tensors and writes `y`, which has elements. Throws InvalidArgument for
  // a problem that is too large for the kernel.
  virtual std::unique_ptr<Plan> make(const Problem& problem, const Device& device) const = 0;

  // The kernel instances that its plan launches, as in Offer::kernels.
  virtual std::vector<std::string> kernels(const Problem& problem, const Device& device) const = 0;
};

// LayoutPool; x and y are NHWC.
using PoolStage = OpStage<PoolProblem>;
// LayerNormalization; `w` is the scale.
using LayerNormStage = OpStage<LayerNormProblem>;
// Mul; `w` has the factors.
using MulStage = OpStage<MulProblem>;

// The stages of a kind of device.
const PoolStage& pool_stage(DeviceKind kind);
const LayerNormStage& layer_norm_stage(DeviceKind kind);
const MulStage& mul_stage(DeviceKind kind);

}  // namespace convswap
