#include "plan/plan_cache.h"

#include <mutex>

#include "plan/planner.h"

namespace convswap {

// A server that sees every image size must not grow for ever; planning again is cheap beside a run.
constexpr size_t kMostPlans = 4096;

std::shared_ptr<const Plan> PlanCache::get(const ConvProblem& problem, const Device& device,
                                           const std::function<void(const Offer&)>& before_making) {
  const Key key{problem, device.index};
  {
    const std::shared_lock<std::shared_mutex> reading(mutex_);
    if (const auto found = plans_.find(key); found != plans_.end()) return found->second;
  }
  const Choice choice = choose(problem, device, algorithm_, own_);
  if (before_making) before_making(choice.offer);
  std::shared_ptr<const Plan> plan = choice.offer.make();
  const std::unique_lock<std::shared_mutex> writing(mutex_);
  if (plans_.size() >= kMostPlans) plans_.clear();
  return plans_.try_emplace(key, std::move(plan)).first->second;
}

}  // namespace convswap
