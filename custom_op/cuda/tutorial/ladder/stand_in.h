#pragma once

#include <string>

#include "plan/algorithm.h"

namespace convswap::ladder {

// A rung that has no kernel of its own: it computes with the first of the library's fast algorithms that can.
class StandIn : public Algorithm {
 public:
  DeviceKind device_kind() const final { return DeviceKind::cuda; }
  bool is_rung() const final { return true; }
  Offer offer(const ConvProblem& problem, const Device& device) const final;

 protected:
  // Why the rung leaves a problem, whatever the algorithms could do; empty where it does not.
  virtual std::string why_not_here(const ConvProblem& problem) const = 0;
};

}  // namespace convswap::ladder
