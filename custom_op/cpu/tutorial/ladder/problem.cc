#include "cpu/tutorial/ladder/problem.h"

#include <algorithm>

namespace convswap::ladder {
namespace {

constexpr int64_t kMaxElements = 1 << 30;

bool is_all(const Axes& axes, int64_t value) {
  return std::all_of(axes.begin(), axes.end(), [value](int64_t element) { return element == value; });
}

}  // namespace

std::string why_not(const ConvProblem& problem) {
  const std::string only = "the rungs of the ladder compute ";
  if (problem.type != ElementType::float32) {
    return only + "float32, and the data are " + std::string(name_of(problem.type));
  }
  if (problem.spatial_rank != 2) {
    return only + "images, with 2 spatial axes, and these have " + std::to_string(problem.spatial_rank);
  }
  if (!problem.epilogue.is_empty()) return only + "the convolution alone, and here more is fused with it";
  if (!is_all(problem.stride, 1)) return only + "stride 1";
  if (!is_all(problem.dilation, 1)) return only + "dilation 1";
  if (!is_all(problem.pad_begin, 0) || !is_all(problem.pad_end, 0)) return only + "without padding";
  if (problem.group != 1) return only + "one group, and these are " + std::to_string(problem.group);
  if (problem.in_channels == 0) return "the input has no channels";
  if (problem.output_elements() == 0) return "the output is empty";
  for (const int64_t elements :
       {problem.batch * problem.in_channels * problem.input_size(),
        problem.out_channels * problem.in_channels * problem.filter_size(), problem.output_elements()}) {
    if (elements > kMaxElements) return "the ladder's indices have 32 bits and the problem needs more";
  }
  return {};
}

Convolution shapes_of(const ConvProblem& problem) {
  const auto narrow = [](int64_t value) { return static_cast<int>(value); };
  Convolution conv{};
  conv.batch = narrow(problem.batch);
  conv.channels = narrow(problem.in_channels);
  conv.height = narrow(problem.input[1]);
  conv.width = narrow(problem.input[2]);
  conv.filters = narrow(problem.out_channels);
  conv.filter_height = narrow(problem.filter[1]);
  conv.filter_width = narrow(problem.filter[2]);
  conv.out_height = narrow(problem.output[1]);
  conv.out_width = narrow(problem.output[2]);
  return conv;
}

}  // namespace convswap::ladder
