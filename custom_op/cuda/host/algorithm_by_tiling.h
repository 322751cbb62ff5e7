#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "plan/algorithm.h"

namespace convswap {

// An algorithm of a card with one kernel for a problem, which it chooses by the tiling that it estimates to
// be the cheapest. `Tiling` has its `cost` in nanoseconds.
template <typename Tiling>
class AlgorithmByTiling : public Algorithm {
 public:
  DeviceKind device_kind() const final { return DeviceKind::cuda; }

  Offer offer(const ConvProblem& problem, const Device& device) const final {
    if (std::string reason = why_not_at_all(problem, device); !reason.empty()) {
      return Offer::refusal(std::move(reason));
    }
    const std::vector<Tiling> tilings = tilings_for(problem, device);
    if (tilings.empty()) return Offer::refusal(why_no_tiling(device));
    return offer_of(problem, device, tilings.front());
  }

  std::vector<Offer> alternatives(const ConvProblem& problem, const Device& device,
                                  std::size_t most) const final {
    std::vector<Offer> all;
    if (!why_not_at_all(problem, device).empty()) return all;
    for (const Tiling& tiling : tilings_for(problem, device)) {
      if (all.size() < most) all.push_back(offer_of(problem, device, tiling));
    }
    return all;
  }

 protected:
  // Why it cannot compute the problem, before a tiling is sought; empty where nothing is in the way.
  virtual std::string why_not_at_all(const ConvProblem& problem, const Device& device) const = 0;

  // All that compute the problem, the cheapest first. Requires an empty why_not_at_all.
  virtual std::vector<Tiling> tilings_for(const ConvProblem& problem, const Device& device) const = 0;
  // Why there may be none.
  virtual std::string why_no_tiling(const Device&) const { return {}; }

  virtual std::unique_ptr<Plan> plan_for(const ConvProblem& problem, const Device& device,
                                         const Tiling& tiling) const = 0;
  virtual std::string kernel_for(const ConvProblem& problem, const Tiling& tiling) const = 0;

 private:
  // Algorithms live as long as the process.
  Offer offer_of(const ConvProblem& problem, const Device& device, const Tiling& tiling) const {
    return {{},
            tiling.cost / 1e6,
            [this, problem, device, tiling] { return plan_for(problem, device, tiling); },
            [this, problem, tiling] { return std::vector{kernel_for(problem, tiling)}; }};
  }
};

}  // namespace convswap
