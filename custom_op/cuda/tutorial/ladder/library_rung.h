#pragma once

#include <string>
#include <utility>

#include "cpu/tutorial/ladder/problem.h"
#include "plan/epilogue_stage.h"

namespace convswap {

const Algorithm& cuda_toeplitz();
const Algorithm& cuda_few_channels();

namespace ladder {

// A rung without kernels: it runs the first of the library's fast algorithms that supports the problem.
class LibraryRung : public Algorithm {
 public:
  DeviceKind device_kind() const final { return DeviceKind::cuda; }
  std::string_view why_by_name_alone() const final { return kRung; }

  Offer offer(const ConvProblem& problem, const Device& device) const final {
    std::string reasons = why_unsupported(problem);
    if (!reasons.empty()) return Offer::refusal(std::move(reasons));
    for (const Algorithm* algorithm : {&cuda_toeplitz(), &cuda_few_channels()}) {
      Offer offer = offer_of(*algorithm, problem, device);
      if (!offer.is_refusal()) return {{}, std::nullopt, std::move(offer.make), std::move(offer.kernels)};
      reasons += (reasons.empty() ? "" : "; ") + std::string(algorithm->name()) + ": " + offer.why_not;
    }
    return Offer::refusal(std::move(reasons));
  }

 protected:
  // Why the rung does not support a problem, whatever the algorithms support; empty if it does.
  virtual std::string why_unsupported(const ConvProblem& problem) const = 0;
};

}  // namespace ladder
}  // namespace convswap
