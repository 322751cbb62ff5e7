#pragma once

#include <memory>

#include "plan/algorithm.h"

namespace convswap::implicit_gemm {

// The plans of implicit_gemm, by what its kernel makes of the data; tensor_core_formats.cuh tells how. Each
// is a file of its own, since compiling takes a while.
std::unique_ptr<Plan> plan_float32_as_scaled_float16(const ConvProblem& problem, const Device& device);
std::unique_ptr<Plan> plan_float32_as_two_float16(const ConvProblem& problem, const Device& device);
std::unique_ptr<Plan> plan_float16(const ConvProblem& problem, const Device& device);
std::unique_ptr<Plan> plan_bfloat16(const ConvProblem& problem, const Device& device);

}  // namespace convswap::implicit_gemm
