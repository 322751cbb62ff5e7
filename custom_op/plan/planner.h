#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <shared_mutex>
#include <string>
#include <string_view>
#include <unordered_map>

#include "plan/algorithm.h"
#include "plan/epilogue_stage.h"
#include "plan/tuning.h"

namespace convswap {

// Algorithm names that leave the choice to the planner. "auto" selects by its heuristic, which compares
// estimates. "tuned" selects by the measurements of `convswap tune`, and by the heuristic for problems that
// were not measured.
inline constexpr std::string_view kAuto = "auto";
inline constexpr std::string_view kTuned = "tuned";

// True for these two names.
inline bool leaves_choice(std::string_view requested) { return requested == kAuto || requested == kTuned; }

// Throws InvalidArgument, with the nearest name, if no algorithm for the kind of device has this name.
void check_algorithm_name(std::string_view requested, DeviceKind kind);

// Returns why no algorithm of the catalog can compute the problem on the device; "" if one can.
std::string why_no_algorithm(const ConvProblem& problem, const Device& device);

// The algorithm selected for a problem, its offer, and the reason.
struct Choice {
  const Algorithm& algorithm;
  Offer offer;
  bool by_name = false;                 // selected by its own name
  std::optional<TuningEntry> measured;  // the entry of the tuning table or of the node that decided
  std::string why_not_measured;         // why the heuristic decided despite "tuned"; else empty
  bool by_node = false;                 // `measured` is one of the node's hints
};

// Selects the algorithm for a problem.
//
//   a name    that algorithm
//   "auto"    the supported algorithm with the lowest estimate; the catalog's first if none has an estimate
//   "tuned"   the algorithm of the tuning table if it supports the problem, else as "auto"
//
// With "auto" and "tuned" a supported algorithm of the node's hints takes precedence. Throws InvalidArgument
// if the name is unknown, or if the algorithm (with "auto" and "tuned": every algorithm) cannot compute the
// problem.
Choice choose(const ConvProblem& problem, const Device& device, std::string_view requested,
              const TuningHints& hints = {});

// Adds the depthwise convolution in front to `convolution`, the algorithm's offer for the rest of the
// problem. The depthwise result goes through scratch memory. On a card the planner's heuristic selects the
// algorithm of the depthwise convolution; on the CPU it is the same algorithm. Refuses if no algorithm
// supports the depthwise convolution, or if the device lends no memory.
Offer with_depthwise(const Algorithm& algorithm, Offer convolution, const ConvProblem& problem,
                     const Device& device);

// The plans of one node by problem and device: a known shape costs one look-up. Thread-safe; a plan in use
// outlives its eviction.
class PlanCache {
 public:
  // `hints`: the node's own measurements.
  explicit PlanCache(std::string algorithm, TuningHints hints = {})
      : algorithm_(std::move(algorithm)), hints_(std::move(hints)) {}

  const std::string& algorithm() const { return algorithm_; }

  // Throws InvalidArgument if no algorithm supports the problem. For a new shape, `before_making` is called
  // with the selected offer before its plan is made, which may take time.
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
  TuningHints hints_;
  std::shared_mutex mutex_;
  std::unordered_map<Key, std::shared_ptr<const Plan>, KeyHash> plans_;
};

}  // namespace convswap
