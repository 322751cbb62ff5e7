#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "plan/algorithm.h"

namespace convswap {

// What follows a convolution, computed by itself, for the algorithms whose own code ends with the
// convolution: in place in y, or, where a pool makes y smaller than the convolution's output, from scratch
// memory.
class EpilogueStage {
 public:
  virtual ~EpilogueStage() = default;

  // Empty where a problem's epilogue may be computed of the convolution's results in memory; otherwise why
  // not, in words a user can act on.
  virtual std::string why_not(const ConvProblem& problem) const = 0;

  // About how long it takes, in milliseconds. Requires an empty why_not, as the next does.
  virtual double estimate(const ConvProblem& problem, const Device& device) const = 0;
  virtual std::unique_ptr<Plan> make(const ConvProblem& problem, const Device& device) const = 0;

  // The kernels that its plan will start, as an offer names them.
  virtual std::vector<std::string> kernels(const ConvProblem& problem) const = 0;
};

// The stage of a kind of device; null where all of its algorithms compute what follows themselves.
const EpilogueStage* epilogue_stage(DeviceKind kind);

// Why the device cannot have the kernels that an offer names, where nothing can be compiled and others lie
// ready; empty where it can, and where none lie ready: then the plan says so when it is made.
std::string why_no_kernels(const Device& device, const std::function<std::vector<std::string>()>& kernels);

// What the algorithm offers for the whole problem: where it computes the convolution alone, with the device's
// stage for what follows.
Offer offer_of(const Algorithm& algorithm, const ConvProblem& problem, const Device& device);

}  // namespace convswap
