#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
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

// Two plans, one after the other, of which one is the convolution's, whose weights may be prepared.
class TwoPlans : public Plan {
 public:
  PreparedForm prepared_form() const final { return convolution_.prepared_form(); }
  void prepare(const void* weights, void* prepared, void* stream) const final {
    convolution_.prepare(weights, prepared, stream);
  }
  std::string describe() const final { return first_->describe() + "; then " + second_->describe(); }
  std::vector<KernelFacts> kernels() const final;

 protected:
  TwoPlans(std::unique_ptr<Plan> first, std::unique_ptr<Plan> second, bool convolution_is_first)
      : first_(std::move(first)),
        second_(std::move(second)),
        convolution_(convolution_is_first ? *first_ : *second_) {}

  // As memory for anything begins.
  static std::size_t aligned(std::size_t bytes) { return (bytes + 255) / 256 * 256; }

  const std::unique_ptr<Plan> first_, second_;
  const Plan& convolution_;  // one of them
};

// For a plan that takes memory beside its tensors where none is lent.
Offer refuse_scratch();

// What the algorithm offers for the whole problem: where it computes the convolution alone, with the device's
// stage for what follows.
Offer offer_of(const Algorithm& algorithm, const ConvProblem& problem, const Device& device);

// What the algorithm chooses among for the whole problem, as Algorithm::alternatives; where it computes a
// part of it alone, what it offers.
std::vector<Offer> alternatives_of(const Algorithm& algorithm, const ConvProblem& problem,
                                   const Device& device, std::size_t most);

}  // namespace convswap
