#pragma once

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

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

// The best tiling that search(Candidates<Tiling>&) finds, if any.
template <typename Tiling>
std::optional<Tiling> best_of(const auto& search) {
  Candidates<Tiling> found;
  search(found);
  return found.best();
}

// All tilings that search(Candidates<Tiling>&) finds, in ascending order of cost.
template <typename Tiling>
std::vector<Tiling> all_of(const auto& search) {
  Candidates<Tiling> found(true);
  search(found);
  return std::move(found).sorted();
}

}  // namespace convswap
