#pragma once

#include <functional>
#include <memory>
#include <shared_mutex>
#include <string>
#include <unordered_map>

#include "plan/algorithm.h"
#include "plan/preferences.h"

namespace convswap {

// The plans of one node, keyed by problem and device, so that a shape seen before costs one look-up. Safe
// for concurrent runs; a plan in use outlives its eviction.
class PlanCache {
 public:
  // `own`: what the node itself tells of its problems.
  explicit PlanCache(std::string algorithm, Preferences own = {})
      : algorithm_(std::move(algorithm)), own_(std::move(own)) {}

  const std::string& algorithm() const { return algorithm_; }

  // Throws InvalidArgument where the planner finds no algorithm. `before_making`, if given, is told what was
  // chosen for a shape that is new, before its plan is made, which may take time.
  std::shared_ptr<const Plan> get(const ConvProblem& problem, const Device& device,
                                  const std::function<void(const Offer&)>& before_making = nullptr);

 private:
  struct Key {
    ConvProblem problem;
    int device_index;
    bool operator==(const Key&) const = default;
  };
  struct KeyHash {
    size_t operator()(const Key& key) const {
      return ConvProblemHash()(key.problem) + static_cast<size_t>(key.device_index);
    }
  };

  std::string algorithm_;
  Preferences own_;
  std::shared_mutex mutex_;
  std::unordered_map<Key, std::shared_ptr<const Plan>, KeyHash> plans_;
};

}  // namespace convswap
