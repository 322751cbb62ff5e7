#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "plan/algorithm.h"

namespace convswap {

// A CUDA algorithm that has one plan per tiling and offers the tiling with the least estimate. kBest(problem,
// device) returns that tiling if there is one: an std::optional, or a vector whose first element counts.
// kAll(problem, device) returns all tilings that compute the problem, the cheapest first. A tiling has its
// `cost` in nanoseconds, or no such member if the algorithm has no estimate, and `key()`, its name, if there
// are several. cost_of(problem, device, tiling) computes the cost from the device's coefficients.
// `TilingPlan` is a KernelPlan or the family's own class. Its constructor takes (problem, device, tiling),
// and its static members are
//
//   kernel_names(problem, tiling)    of the instances that it launches, each once
//   why_not(problem, tiling)         optional: why it cannot compute the problem, or empty
//   kNeedsScratch                    optional: Offer::needs_scratch. If that depends on the tiling, the
//                                    tiling has a member needs_scratch()
template <typename TilingPlan, auto kBest, auto kAll = kBest>
class AlgorithmByTiling : public Algorithm {
 public:
  DeviceKind device_kind() const final { return DeviceKind::cuda; }

  Offer offer(const ConvProblem& problem, const Device& device) const final {
    if (std::string reason = why_not_at_all(problem, device); !reason.empty()) {
      return Offer::refusal(std::move(reason));
    }
    const auto tilings = as_vector(kBest(problem, device));
    if (tilings.empty()) return Offer::refusal(why_no_tiling(problem, device));
    if (std::string reason = why_not(problem, tilings.front()); !reason.empty()) {
      return Offer::refusal(std::move(reason));
    }
    return offer_of(problem, device, tilings.front());
  }

  std::vector<Offer> alternatives(const ConvProblem& problem, const Device& device,
                                  std::size_t max_count) const final {
    std::vector<Offer> offers;
    if (!why_not_at_all(problem, device).empty()) return offers;
    std::set<std::string> keys;  // a search may find a tiling twice
    for (const auto& tiling : as_vector(kAll(problem, device))) {
      if (offers.size() == max_count) break;
      if constexpr (requires { tiling.key(); }) {
        if (!keys.insert(tiling.key()).second) continue;
      }
      if (why_not(problem, tiling).empty()) offers.push_back(offer_of(problem, device, tiling));
    }
    return offers;
  }

 protected:
  // Why the algorithm cannot compute the problem with any tiling; empty if it may.
  virtual std::string why_not_at_all(const ConvProblem&, const Device&) const { return {}; }

  // Why no tiling was found.
  virtual std::string why_no_tiling(const ConvProblem&, const Device&) const { return {}; }

 private:
  template <typename Tiling>
  static std::vector<Tiling> as_vector(std::vector<Tiling> tilings) {
    return tilings;
  }
  template <typename Tiling>
  static std::vector<Tiling> as_vector(std::optional<Tiling> tiling) {
    return tiling ? std::vector{*std::move(tiling)} : std::vector<Tiling>{};
  }

  static std::string why_not(const ConvProblem& problem, const auto& tiling) {
    if constexpr (requires { TilingPlan::why_not(problem, tiling); }) {
      return TilingPlan::why_not(problem, tiling);
    } else {
      return {};
    }
  }

  template <typename Tiling>
  static Offer offer_of(const ConvProblem& problem, const Device& device, const Tiling& tiling) {
    Offer offer;
    if constexpr (requires { tiling.cost; }) offer.milliseconds = tiling.cost / 1e6;
    if constexpr (requires { cost_of(problem, device, tiling); }) {
      offer.milliseconds_for = [problem, device, tiling](std::shared_ptr<const CostTable> costs) {
        Device other = device;
        other.costs = std::move(costs);
        return cost_of(problem, other, tiling) / 1e6;
      };
    }
    offer.make = [problem, device, tiling] { return std::make_unique<TilingPlan>(problem, device, tiling); };
    offer.kernels = [problem, tiling] { return TilingPlan::kernel_names(problem, tiling); };
    if constexpr (requires { tiling.key(); }) offer.tiling = [tiling] { return tiling.key(); };
    if constexpr (requires { TilingPlan::kNeedsScratch; }) offer.needs_scratch = TilingPlan::kNeedsScratch;
    if constexpr (requires { tiling.needs_scratch(); }) offer.needs_scratch = tiling.needs_scratch();
    return offer;
  }
};

}  // namespace convswap
