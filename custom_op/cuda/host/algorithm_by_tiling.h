#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "plan/algorithm.h"

namespace convswap {

// An algorithm of a card that has one plan for a problem, by the tiling that it estimates to be the cheapest.
// kBest(problem, device) is that tiling, if there is one: an std::optional, or the first of a vector.
// kAll(problem, device): all that compute the problem, the cheapest first. A tiling has its `cost` in
// nanoseconds, or none where the algorithm has no estimate. A `ChosenPlan`, which is a KernelPlan or the
// family's own, is made of (problem, device, tiling), and has as static members
//
//   kernel_names(problem, tiling)    of the instances that it starts, each once
//   why_not(problem, tiling)         if there: why it cannot compute the problem, or nothing
//   kNeedsScratch                    if there: a run takes memory beside its tensors
template <typename ChosenPlan, auto kBest, auto kAll = kBest>
class AlgorithmByTiling : public Algorithm {
 public:
  DeviceKind device_kind() const final { return DeviceKind::cuda; }

  Offer offer(const ConvProblem& problem, const Device& device) const final {
    if (std::string reason = why_not_at_all(problem, device); !reason.empty()) {
      return Offer::refusal(std::move(reason));
    }
    const auto tilings = listed(kBest(problem, device));
    if (tilings.empty()) return Offer::refusal(why_no_tiling(problem, device));
    if (std::string reason = why_not(problem, tilings.front()); !reason.empty()) {
      return Offer::refusal(std::move(reason));
    }
    return offer_of(problem, device, tilings.front());
  }

  std::vector<Offer> alternatives(const ConvProblem& problem, const Device& device,
                                  std::size_t most) const final {
    std::vector<Offer> all;
    if (!why_not_at_all(problem, device).empty()) return all;
    for (const auto& tiling : listed(kAll(problem, device))) {
      if (all.size() == most) break;
      if (why_not(problem, tiling).empty()) all.push_back(offer_of(problem, device, tiling));
    }
    return all;
  }

 protected:
  // Why it cannot compute the problem, before a tiling is sought; empty where nothing is in the way.
  virtual std::string why_not_at_all(const ConvProblem&, const Device&) const { return {}; }

  // Why there is no tiling, where there may be none.
  virtual std::string why_no_tiling(const ConvProblem&, const Device&) const { return {}; }

 private:
  template <typename Tiling>
  static std::vector<Tiling> listed(std::vector<Tiling> tilings) {
    return tilings;
  }
  template <typename Tiling>
  static std::vector<Tiling> listed(std::optional<Tiling> tiling) {
    return tiling ? std::vector{*std::move(tiling)} : std::vector<Tiling>{};
  }

  static std::string why_not(const ConvProblem& problem, const auto& tiling) {
    if constexpr (requires { ChosenPlan::why_not(problem, tiling); }) {
      return ChosenPlan::why_not(problem, tiling);
    } else {
      return {};
    }
  }

  template <typename Tiling>
  static Offer offer_of(const ConvProblem& problem, const Device& device, const Tiling& tiling) {
    Offer offer;
    if constexpr (requires { tiling.cost; }) offer.milliseconds = tiling.cost / 1e6;
    offer.make = [problem, device, tiling] { return std::make_unique<ChosenPlan>(problem, device, tiling); };
    offer.kernels = [problem, tiling] { return ChosenPlan::kernel_names(problem, tiling); };
    if constexpr (requires { ChosenPlan::kNeedsScratch; }) offer.needs_scratch = ChosenPlan::kNeedsScratch;
    return offer;
  }
};

}  // namespace convswap
