#include "cuda/channels_last/derived.h"

#include "conv/arithmetic.h"
#include "cuda/channels_last/arguments.h"
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

bool takes_windows(const ConvProblem& node) {
  const auto [input, output, residual] = node.layouts;
  return node.group == 1 && node.spatial_rank < 3 && node.out_channels % kAlignment == 0 &&
         output == Layout::nhwc && (!node.epilogue.has_residual || residual == Layout::nhwc);
}

ConvProblem with_windows(const ConvProblem& node, int64_t columns) {
  ConvProblem to = node;
  to.layouts.input = Layout::nhwc;
  to.in_channels = round_up(node.in_channels * columns, kAlignment);
  // The rows that some output reads.
  const int64_t rows = (node.output[1] - 1) * node.stride[1] + (node.filter[1] - 1) * node.dilation[1] + 1;
  to.input = {1, rows, node.output[2]};
  to.filter[2] = to.stride[2] = to.dilation[2] = 1;
  to.pad_begin = to.pad_end = {0, 0, 0};
  return to;
}

}  // namespace

Derived derived_of(const ConvProblem& node) {
  if (!node.is_quantised()) return {node};
  if (has_nhwc_tensors(node) && node.in_channels % kAlignment == 0 && node.out_channels % kAlignment == 0) {
    return {node};
  }
  if (const int64_t pixels = joined_pixels_of(node); pixels > 1) {
    return {with_joined_pixels(node, pixels), pixels};
  }
  if (!takes_windows(node)) return {node};
  const int64_t columns = round_up(node.filter[2], int64_t{kWordCodes});
  return {with_windows(node, columns), 1, columns};
}

}  // namespace convswap::channels_last
