#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "plan/algorithm.h"

namespace convswap {

// An algorithm of a card with one kernel for a problem, which it chooses by the tiling that it estimates to
// be the cheapest. kTilings(problem, device): all tilings that compute the problem, the cheapest first, each
// with its `cost` in nanoseconds; kMakePlan(problem, device, tiling) and kKernelName(problem, tiling): of
// one.
template <auto kTilings, auto kMakePlan, auto kKernelName>
class AlgorithmByTiling : public Algorithm {
 public:
  DeviceKind device_kind() const final { return DeviceKind::cuda; }

  Offer offer(const ConvProblem& problem, const Device& device) const final {
    if (std::string reason = why_not_at_all(problem, device); !reason.empty()) {
      return Offer::refusal(std::move(reason));
    }
    const auto tilings = kTilings(problem, device);
    if (tilings.empty()) return Offer::refusal(why_no_tiling(device));
    return offer_of(problem, device, tilings.front());
  }

  std::vector<Offer> alternatives(const ConvProblem& problem, const Device& device,
                                  std::size_t most) const final {
    std::vector<Offer> all;
    if (!why_not_at_all(problem, device).empty()) return all;
    for (const auto& tiling : kTilings(problem, device)) {
      if (all.size() < most) all.push_back(offer_of(problem, device, tiling));
    }
    return all;
  }

 protected:
  // Why it cannot compute the problem, before a tiling is sought; empty where nothing is in the way.
  virtual std::string why_not_at_all(const ConvProblem& problem, const Device& device) const = 0;

  // Why there is no tiling, where there may be none.
  virtual std::string why_no_tiling(const Device&) const { return {}; }

 private:
  template <typename Tiling>
  static Offer offer_of(const ConvProblem& problem, const Device& device, const Tiling& tiling) {
    return {{},
            tiling.cost / 1e6,
            [problem, device, tiling] { return kMakePlan(problem, device, tiling); },
            [problem, tiling] { return std::vector{kKernelName(problem, tiling)}; }};
  }
};

}  // namespace convswap
