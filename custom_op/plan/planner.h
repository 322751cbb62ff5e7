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

// The words that leave the choice to the planner: to its rule, or to what `convswap tune` measured, and to
// the rule where nothing was measured.
inline constexpr std::string_view kAuto = "auto";
inline constexpr std::string_view kTuned = "tuned";

// Whether the word is one of these two, and not an algorithm's own name.
inline bool leaves_choice(std::string_view requested) { return requested == kAuto || requested == kTuned; }

// Throws InvalidArgument, naming the nearest, where no algorithm for the kind of device has the name.
void check_algorithm_name(std::string_view requested, DeviceKind kind);

// Empty where some algorithm of the catalog can compute the problem on the device; otherwise why none can.
std::string why_none(const ConvProblem& problem, const Device& device);

// The algorithm that a problem gets, what it offers, and what decided.
struct Choice {
  const Algorithm& algorithm;
  Offer offer;
  bool by_name = false;                 // it was asked for by its own name
  std::optional<TuningEntry> measured;  // it was taken from this entry, of the tuning table or the node's own
  std::string why_not_measured;         // "tuned" was asked for, and this is why the rule decided; else empty
  bool by_node = false;                 // the entry is the node's own
};

// The algorithm called `requested`; with "auto", of those that support the problem, the one estimated
// fastest, or the catalog's first where none has an estimate; with "tuned" the one that the tuning table
// names, where it names one that supports the problem, else as "auto". Before both comes the one that the
// node's `own` preferences name, where it supports the problem. Throws InvalidArgument where the name is
// unknown, or where the algorithm (with "auto" and "tuned": every one) cannot compute the problem.
Choice choose(const ConvProblem& problem, const Device& device, std::string_view requested,
              const Preferences& own = {});

// The whole of a problem with a depthwise convolution in front, where `convolution` is the algorithm's offer
// for the rest: first the depthwise convolution, into memory that is taken for the run, and then the rest. On
// a card the rule chooses what computes the depthwise convolution; on the CPU, where each algorithm computes
// all there is, it is the same one. A refusal where nothing computes it, or no memory is lent.
Offer with_depthwise(const Algorithm& algorithm, Offer convolution, const ConvProblem& problem,
                     const Device& device);

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
