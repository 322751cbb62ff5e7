#pragma once

#include <string>

#include "plan/algorithm.h"

namespace convswap {

// What the planner and the ops ask about the kernels that an offer names; the card's side answers.

// Why the device cannot have them, where nothing can be compiled and others lie ready; empty where it can,
// and where none lie ready: then the plan says so when it is made.
std::string why_no_kernels(const Device& device, const Offer& offer);

// What making the plan has to wait for, in one line for a log: kernels that have to be compiled first. Empty
// where all are there.
std::string what_is_compiled(const Device& device, const Offer& offer);

}  // namespace convswap
