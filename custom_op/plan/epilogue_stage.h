#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "plan/algorithm.h"

namespace convswap {

// An epilogue in a separate kernel, for algorithms that compute only the convolution. It works in place in
// y. With a pool, which makes y smaller than the convolution's output, it reads that output from scratch
// memory.
class EpilogueStage {
 public:
  virtual ~EpilogueStage() = default;

  // Returns why a problem's epilogue cannot be a separate kernel, in words that a user can act on; "" if it
  // can.
  virtual std::string why_not(const ConvProblem& problem) const = 0;

  // The estimated time in milliseconds. estimate() and make() require an empty why_not().
  virtual double estimate(const ConvProblem& problem, const Device& device) const = 0;
  virtual std::unique_ptr<Plan> make(const ConvProblem& problem, const Device& device) const = 0;

  // The kernel instances that its plan launches, as in Offer::kernels.
  virtual std::vector<std::string> kernels(const ConvProblem& problem, const Device& device) const = 0;
};

// The epilogue stage of a kind of device; null if all of its algorithms compute epilogues themselves.
const EpilogueStage* epilogue_stage(DeviceKind kind);

// The stage of a kind of device that pools the codes of a convolution of codes; null if there is none. The
// convolution in front computes the rest of the epilogue.
const EpilogueStage* code_pool_stage(DeviceKind kind);

// Two plans in turn. One of them is the convolution's, whose weights may be prepared.
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

  const std::unique_ptr<Plan> first_, second_;
  const Plan& convolution_;  // *first_ or *second_
};

// The refusal of a plan that needs scratch memory on a device that lends none.
Offer refuse_scratch();

// The algorithm's offer for the whole problem. If the algorithm computes only a part, the offer adds the
// device's layout stage, its epilogue stage and a plan for the depthwise convolution in front.
Offer offer_of(const Algorithm& algorithm, const ConvProblem& problem, const Device& device);

// Algorithm::alternatives for the whole problem. If the algorithm computes only a part, its single offer.
std::vector<Offer> alternatives_of(const Algorithm& algorithm, const ConvProblem& problem,
                                   const Device& device, std::size_t max_count);

}  // namespace convswap
