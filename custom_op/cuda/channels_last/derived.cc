#include "cuda/channels_last/derived.h"

#include "cuda/host/limits.h"
#include "cuda/host/tensor_map.h"

namespace convswap::channels_last {
namespace {

constexpr auto kAlignment = static_cast<int64_t>(kTensorMapAlignment);

bool maps_pixels_to_pixels(const ConvProblem& problem) {
  return problem.group == 1 && problem.filter_size() == 1 && problem.stride == Axes{1, 1, 1} &&
         problem.output == problem.input;
}

// The pixels to join, 2 or 4, so that TMA takes their channels and filters; 1 if it does not.
int64_t joined_pixels_of(const ConvProblem& problem) {
  if (!has_nhwc_tensors(problem) || !maps_pixels_to_pixels(problem)) return 1;
  for (const int64_t pixels : {2, 4}) {
    if (problem.batch * problem.input_size() % pixels == 0 &&
        pixels * problem.in_channels % kAlignment == 0 && pixels * problem.out_channels % kAlignment == 0) {
      return pixels;
    }
  }
  return 1;
}

// The problem with `pixels` neighbouring pixels as one, all of them in one row of one image.
ConvProblem with_joined_pixels(const ConvProblem& problem, int64_t pixels) {
  ConvProblem to = problem;
  to.batch = 1;
  to.in_channels *= pixels, to.out_channels *= pixels;
  to.input = {1, 1, problem.batch * problem.input_size() / pixels};
  to.output = to.result = to.input;
  return to;
}

}  // namespace

Derived derived_of(const ConvProblem& node) {
  if (!node.is_quantised()) return {node};
  if (node.in_channels % kAlignment == 0 && node.out_channels % kAlignment == 0) return {node};
  const int64_t pixels = joined_pixels_of(node);
  return pixels == 1 ? Derived{node} : Derived{with_joined_pixels(node, pixels), pixels};
}

}  // namespace convswap::channels_last
