#include "cuda/host/limits.h"

#include <algorithm>

#include "cuda/host/text.h"

namespace convswap {
namespace {

std::string dotted(int compute_capability) {
  return joined(compute_capability / 10, ".", compute_capability % 10);
}

}  // namespace

std::string why_not_depthwise(const ConvProblem& problem) {
  if (std::string reason = why_not_float(problem); !reason.empty()) return reason;
  if (problem.channels_per_group() == 1) return "";
  return joined("it computes depthwise convolutions, and filters of this one see ",
                problem.channels_per_group(), " channels");
}

std::string why_not_1d_or_2d(const ConvProblem& problem) {
  if (problem.spatial_rank > 2 && problem.type != ElementType::float64) {
    return "it computes 1-D and 2-D data and these have 3 spatial axes";
  }
  return why_not_float(problem);
}

std::string why_not_float(const ConvProblem& problem) {
  if (problem.type == ElementType::float64) return "it does not compute float64";
  return why_not_sizes(problem);
}

std::string why_not_sizes(const ConvProblem& problem) {
  if (problem.result_elements() == 0) return "the output is empty";
  if (problem.channels_per_group() == 0) return "the input has no channels";
  if (problem.group > kMaxGridRows) {
    return joined("it takes at most ", kMaxGridRows, " groups");
  }
  return {};
}

std::string why_not_capability(int compute_capability, const Device& device) {
  if (device.compute_capability >= compute_capability) return {};
  return "it needs compute capability " + dotted(compute_capability) + " or newer, and " + device.name +
         " has " + dotted(device.compute_capability);
}

std::string why_not_hopper(const Device& device) {
  if (device.compute_capability == 90) return {};
  return "it needs compute capability 9.0, and " + device.name + " has " + dotted(device.compute_capability);
}

std::string why_not_shared_memory(const std::string& subject, const Device& device) {
  return joined(subject, " not fit into the ", device.shared_memory_per_block, " bytes of shared memory of ",
                device.name);
}

int64_t max_ieee_products(const Device& device) { return device.compute_capability >= 90 ? 44 : 22; }

bool has_nhwc_tensors(const ConvProblem& problem) {
  const auto [input, output, residual] = problem.layouts;
  return input == Layout::nhwc && output == Layout::nhwc &&
         (!problem.epilogue.has_residual || residual == Layout::nhwc);
}

int64_t padded_input(const ConvProblem& problem, int axis) {
  return problem.input[axis] + problem.pad_begin[axis] + problem.pad_end[axis];
}

std::string why_not_32_bit_indices(std::initializer_list<int64_t> indices) {
  constexpr int64_t kMaxIndex = 1 << 30;
  return std::max(indices) > kMaxIndex ? "its indices have 32 bits and the problem needs more" : "";
}

}  // namespace convswap
