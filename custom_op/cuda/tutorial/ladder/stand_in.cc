#include "cuda/tutorial/ladder/stand_in.h"

#include <array>
#include <utility>

#include "plan/epilogue_stage.h"

namespace convswap {

const Algorithm& cuda_toeplitz();
const Algorithm& cuda_few_channels();

namespace ladder {
namespace {

std::array<const Algorithm*, 2> fast_algorithms() { return {&cuda_toeplitz(), &cuda_few_channels()}; }

}  // namespace

Offer StandIn::offer(const ConvProblem& problem, const Device& device) const {
  std::string reasons = why_not_here(problem);
  if (!reasons.empty()) return Offer::refusal(std::move(reasons));
  for (const Algorithm* algorithm : fast_algorithms()) {
    Offer offer = offer_of(*algorithm, problem, device);
    if (!offer.is_refusal()) return {{}, std::nullopt, std::move(offer.make), std::move(offer.kernels)};
    reasons += (reasons.empty() ? "" : "; ") + std::string(algorithm->name()) + ": " + offer.why_not;
  }
  return Offer::refusal(std::move(reasons));
}

}  // namespace ladder
}  // namespace convswap
