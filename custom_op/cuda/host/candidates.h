#pragma once

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "conv/problem.h"
#include "plan/device.h"

namespace convswap {

// The tilings that a search finds: the one with the least cost, or all for measurements. The first of equal
// ones counts.
template <typename Tiling>
class Candidates {
 public:
  explicit Candidates(bool keeps_all = false) : keeps_all_(keeps_all) {}

  void add(const Tiling& tiling) {
    if (keeps_all_) all_.push_back(tiling);
    if (!best_ || tiling.cost < best_->cost) best_ = tiling;
  }

  const std::optional<Tiling>& best() const { return best_; }

  // All tilings, in ascending order of cost.
  std::vector<Tiling> sorted() && {
    std::ranges::stable_sort(all_, {}, &Tiling::cost);
    return std::move(all_);
  }

 private:
  bool keeps_all_;
  std::optional<Tiling> best_;
  std::vector<Tiling> all_;
};

template <typename Tiling>
Candidates<Tiling> candidates_of(void (*search)(const ConvProblem&, const Device&, Candidates<Tiling>&),
                                 const ConvProblem& problem, const Device& device, bool keeps_all) {
  Candidates<Tiling> found(keeps_all);
  search(problem, device, found);
  return found;
}

// The best tiling that kSearch(problem, device, found) adds to `found`, if any.
template <auto kSearch>
auto best_of(const ConvProblem& problem, const Device& device) {
  return candidates_of(kSearch, problem, device, false).best();
}

// All tilings that kSearch(problem, device, found) adds to `found`, in ascending order of cost.
template <auto kSearch>
auto all_of(const ConvProblem& problem, const Device& device) {
  return candidates_of(kSearch, problem, device, true).sorted();
}

}  // namespace convswap
