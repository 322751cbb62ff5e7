#pragma once

#include <algorithm>

#include "conv/problem.h"
#include "cuda/naive_sum.cuh"

namespace convswap {

// All but the pointers.
template <typename T>
NaiveArguments<T> naive_arguments(const ConvProblem& problem) {
  NaiveArguments<T> to{};
  to.outputs = problem.result_elements();
  to.in_channels = problem.in_channels;
  to.out_channels = problem.out_channels;
  to.channels_per_group = problem.channels_per_group();
  to.filters_per_group = problem.filters_per_group();
  std::copy(problem.input.begin(), problem.input.end(), to.input);
  std::copy(problem.filter.begin(), problem.filter.end(), to.filter);
  std::copy(problem.output.begin(), problem.output.end(), to.output);
  std::copy(problem.stride.begin(), problem.stride.end(), to.stride);
  std::copy(problem.dilation.begin(), problem.dilation.end(), to.dilation);
  std::copy(problem.result.begin(), problem.result.end(), to.result);
  std::copy(problem.pad_begin.begin(), problem.pad_begin.end(), to.pad);
  to.epilogue = problem.epilogue;
  return to;
}

}  // namespace convswap
