#include "cuda/host/arguments.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

namespace convswap {

Geometry geometry_of(const ConvProblem& problem) {
  Geometry geometry{};
  geometry.batch = narrow(problem.batch);
  geometry.in_channels = narrow(problem.in_channels);
  geometry.out_channels = narrow(problem.out_channels);
  geometry.channels = narrow(problem.channels_per_group());
  geometry.filters = narrow(problem.filters_per_group());
  geometry.input_height = narrow(problem.input[1]);
  geometry.input_width = narrow(problem.input[2]);
  geometry.input_plane = narrow(problem.input_size());
  geometry.output_height = narrow(problem.output[1]);
  geometry.output_width = narrow(problem.output[2]);
  geometry.output_plane = narrow(problem.output_size());
  geometry.y_height = narrow(problem.result[1]);
  geometry.y_width = narrow(problem.result[2]);
  geometry.y_plane = narrow(problem.result_size());
  geometry.filter_height = narrow(problem.filter[1]);
  geometry.filter_width = narrow(problem.filter[2]);
  geometry.stride_height = narrow(problem.stride[1]);
  geometry.stride_width = narrow(problem.stride[2]);
  geometry.dilation_height = narrow(problem.dilation[1]);
  geometry.dilation_width = narrow(problem.dilation[2]);
  geometry.pad_height = narrow(problem.pad_begin[1]);
  geometry.pad_width = narrow(problem.pad_begin[2]);
  return geometry;
}

bool is_aligned(const void* data, const ConvProblem& problem, int elements) {
  return reinterpret_cast<uintptr_t>(data) %
             static_cast<uintptr_t>(elements * bytes_per_element(problem.type)) ==
         0;
}

bool are_aligned(const ConvTensors& tensors, std::size_t bytes) {
  const void* const all[] = {tensors.x, tensors.y, tensors.z};
  return std::ranges::all_of(
      all, [&](const void* data) { return reinterpret_cast<std::uintptr_t>(data) % bytes == 0; });
}

NaiveConv naive_conv_of(const ConvProblem& problem) {
  NaiveConv conv{};
  conv.in_channels = problem.in_channels;
  conv.out_channels = problem.out_channels;
  conv.channels_per_group = problem.channels_per_group();
  conv.filters_per_group = problem.filters_per_group();
  std::copy(problem.input.begin(), problem.input.end(), conv.input);
  std::copy(problem.filter.begin(), problem.filter.end(), conv.filter);
  std::copy(problem.output.begin(), problem.output.end(), conv.output);
  std::copy(problem.stride.begin(), problem.stride.end(), conv.stride);
  std::copy(problem.dilation.begin(), problem.dilation.end(), conv.dilation);
  std::copy(problem.result.begin(), problem.result.end(), conv.result);
  std::copy(problem.pad_begin.begin(), problem.pad_begin.end(), conv.pad);
  conv.epilogue = problem.epilogue;
  return conv;
}

NaiveQuantisedConv naive_quantised_conv_of(const ConvProblem& problem) {
  const auto strides_of = [](Layout layout, int64_t channels, int64_t positions) {
    return layout == Layout::nhwc ? Strides{channels * positions, 1, channels}
                                  : Strides{channels * positions, positions, 1};
  };
  NaiveQuantisedConv conv{};
  conv.conv = naive_conv_of(problem);
  conv.quantization = *problem.quantization;
  conv.x_strides = strides_of(problem.layouts.input, problem.in_channels, problem.input_size());
  conv.z_strides = strides_of(problem.layouts.residual, problem.out_channels, problem.output_size());
  conv.y_strides = strides_of(problem.layouts.output, problem.out_channels, problem.result_size());
  conv.y_bytes = narrow(bytes_per_element(problem.y_type));
  conv.y_min_code = problem.y_type == ElementType::int8 ? -128 : 0;
  return conv;
}

void bind_tensors(const ConvTensors& tensors, NaiveQuantisedConv& conv) {
  conv.x = tensors.x;
  conv.w = static_cast<const Int8*>(tensors.w);
  conv.b = static_cast<const int*>(tensors.b);
  conv.scale = static_cast<const float*>(tensors.scale);
  conv.offset = static_cast<const float*>(tensors.offset);
  conv.sum_values = static_cast<const float*>(tensors.sum_values);
  conv.z = tensors.z;
  conv.y = tensors.y;
}

NhwcConv nhwc_conv_of(const ConvProblem& problem) {
  NhwcConv conv{};
  conv.y_elements = problem.result_elements();
  conv.in_channels = narrow(problem.in_channels);
  conv.out_channels = narrow(problem.out_channels);
  conv.channels_per_group = narrow(problem.channels_per_group());
  conv.filters_per_group = narrow(problem.filters_per_group());
  for (int axis = 0; axis < 3; ++axis) {
    conv.input[axis] = narrow(problem.input[axis]);
    conv.filter[axis] = narrow(problem.filter[axis]);
    conv.stride[axis] = narrow(problem.stride[axis]);
    conv.dilation[axis] = narrow(problem.dilation[axis]);
    conv.pad[axis] = narrow(problem.pad_begin[axis]);
    conv.output[axis] = FastDivisor(narrow(problem.output[axis]));
  }
  conv.epilogue = epilogue_params_of(problem.epilogue);
  return conv;
}

StepLimits step_limits_of(const ConvProblem& problem) {
  const Quantization& codes = *problem.quantization;
  const int min_code = problem.y_type == ElementType::int8 ? -128 : 0;
  const float least = static_cast<float>(min_code - codes.y_zero_point), most = least + 255;
  // x is at most 255 from its zero point, and a weight at most 128 from 0.
  const float products = static_cast<float>(problem.channels_per_group() * problem.filter_size());
  StepLimits limits{least, most, false, 255 * 128 * products};
  const EpilogueParams params = epilogue_params_of(problem.epilogue);
  if (!params.only_clamps) return limits;
  // Multiplication by the factor, which is positive, is monotonic even when rounded.
  limits.least = std::clamp(params.lower * codes.y_factor, least, most);
  limits.most = std::clamp(params.upper * codes.y_factor, least, most);
  limits.are_narrower = std::nearbyint(limits.least) > least || std::nearbyint(limits.most) < most;
  return limits;
}

CodeResults code_results_of(const ConvProblem& problem) {
  const Quantization& codes = *problem.quantization;
  const bool has_residual = problem.epilogue.has_residual;
  if (codes.has_sum_values) return has_residual ? CodeResults::any : CodeResults::tabled;
  if (!only_clamps(problem.epilogue)) return CodeResults::any;
  if (has_residual) return codes.rounds_sum ? CodeResults::rounded : CodeResults::residual;
  if (codes.rounds_sum || codes.y_factor != 1) return CodeResults::any;
  return codes.has_offset ? CodeResults::shifted : CodeResults::scaled;
}

Requantisation requantisation_of(const ConvProblem& problem) {
  const Quantization& codes = *problem.quantization;
  const EpilogueParams params = epilogue_params_of(problem.epilogue);
  Requantisation to{};
  to.only_clamps = params.only_clamps;
  to.is_plain = is_code(problem.y_type) && params.only_clamps && !codes.has_offset && !codes.rounds_sum &&
                codes.y_factor == 1 && !problem.epilogue.has_residual;
  to.limits = step_limits_of(problem);
  return to;
}

EpilogueParams epilogue_params_of(const Epilogue& epilogue) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const bool clips = epilogue.activation == Activation::clip;
  const float lower = clips ? epilogue.alpha : epilogue.activation == Activation::relu ? 0.0f : -kInfinity;
  return {epilogue, clips || is_relu_or_none(epilogue), lower, clips ? epilogue.beta : kInfinity};
}

}  // namespace convswap
