#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "plan/algorithm.h"
#include "plan/epilogue_stage.h"
#include "plan/preferences.h"
#include "plan/tuning_table.h"

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

}  // namespace convswap
