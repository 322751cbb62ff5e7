#pragma once

#include "conv/problem.h"
#include "cuda/definition.h"

namespace convswap {

Definition definition_of(const ConvProblem& problem);

}  // namespace convswap
