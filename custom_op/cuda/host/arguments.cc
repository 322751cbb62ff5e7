#include "cuda/host/arguments.h"

#include <algorithm>
#include <cstdint>
#include <limits>

namespace convswap {

Geometry geometry_of(const ConvProblem& problem) {
  Geometry to{};
  to.batch = narrow(problem.batch);
  to.in_channels = narrow(problem.in_channels);
  to.out_channels = narrow(problem.out_channels);
  to.channels = narrow(problem.channels_per_group());
  to.filters = narrow(problem.filters_per_group());
  to.input_height = narrow(problem.input[1]);
  to.input_width = narrow(problem.input[2]);
  to.input_plane = narrow(problem.input_size());
  to.output_height = narrow(problem.output[1]);
  to.output_width = narrow(problem.output[2]);
  to.output_plane = narrow(problem.output_size());
  to.y_height = narrow(problem.result[1]);
  to.y_width = narrow(problem.result[2]);
  to.y_plane = narrow(problem.result_size());
  to.filter_height = narrow(problem.filter[1]);
  to.filter_width = narrow(problem.filter[2]);
  to.stride_height = narrow(problem.stride[1]);
  to.stride_width = narrow(problem.stride[2]);
  to.dilation_height = narrow(problem.dilation[1]);
  to.dilation_width = narrow(problem.dilation[2]);
  to.pad_height = narrow(problem.pad_begin[1]);
  to.pad_width = narrow(problem.pad_begin[2]);
  return to;
}

bool is_aligned(const void* data, const ConvProblem& problem, int elements) {
  return reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(elements * size_of(problem.type)) == 0;
}

NaiveConv naive_conv_of(const ConvProblem& problem) {
  NaiveConv to{};
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

EpilogueParams epilogue_params_of(const Epilogue& epilogue) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const bool clips = epilogue.activation == Activation::clip;
  const float least = clips ? epilogue.alpha : epilogue.activation == Activation::relu ? 0.0f : -kInfinity;
  return {epilogue, clips || is_floored(epilogue), least, clips ? epilogue.beta : kInfinity};
}

}  // namespace convswap
