#pragma once

#include <memory>
#include <optional>
#include <string>

#include "plan/algorithm.h"

namespace convswap {

// An algorithm of the card whose kernel computes a convolution alone. What follows one is then computed by a
// second kernel: in place in y, or, where a pool makes y smaller than the convolution's output, from scratch
// memory.
class ConvolutionOnly : public Algorithm {
 public:
  DeviceKind device_kind() const final { return DeviceKind::cuda; }
  std::string why_not(const ConvProblem& problem, const Device& device) const final;
  std::optional<double> estimate(const ConvProblem& problem, const Device& device) const final;
  std::unique_ptr<Plan> make_plan(const ConvProblem& problem, const Device& device) const final;

 protected:
  // As the functions above, for problems without an epilogue.
  virtual std::string why_not_alone(const ConvProblem& problem, const Device& device) const = 0;
  virtual std::optional<double> estimate_alone(const ConvProblem&, const Device&) const {
    return std::nullopt;
  }
  virtual std::unique_ptr<Plan> plan_alone(const ConvProblem& problem, const Device& device) const = 0;
};

}  // namespace convswap
