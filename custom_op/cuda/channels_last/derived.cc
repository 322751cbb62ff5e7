#include "cuda/channels_last/derived.h"

#include "conv/arithmetic.h"
#include "cuda/channels_last/arguments.h"
#include "cuda/host/tensor_map.h"

namespace convswap::channels_last {
namespace {

constexpr auto kAlignment = static_cast<int64_t>(kTensorMapAlignment);

// Neighbouring pixels of y that are one: as few as have filters for TMA, or as many as have filters for one
// warpgroup; 0 if there is no such number. `takes` says whether a number divides the pixels and fits x.
int64_t joined_pixels_of(const ConvProblem& node, const auto& takes) {
  int64_t found = 0;
  for (const int64_t pixels : {1, 2, 4}) {
    const int64_t filters = pixels * node.out_channels;
    if (filters % kAlignment == 0 && takes(pixels) && (found == 0 || filters <= kWgmmaM)) found = pixels;
  }
  return found;
}

bool maps_pixels_to_pixels(const ConvProblem& node) {
  return node.filter_size() == 1 && node.stride == Axes{1, 1, 1} && node.output == node.input;
}

// All pixels in one row of one image.
ConvProblem with_joined_pixels(const ConvProblem& node, int64_t pixels) {
  ConvProblem to = node;
  to.batch = 1;
  to.in_channels *= pixels, to.out_channels *= pixels;
  to.input = {1, 1, node.batch * node.input_size() / pixels};
  to.output = to.result = to.input;
  return to;
}

ConvProblem with_windows(const ConvProblem& node, int64_t pixels, int64_t columns) {
  ConvProblem to = node;
  to.layouts.input = Layout::nhwc;
  to.in_channels = round_up(node.in_channels * columns, kAlignment);
  to.out_channels *= pixels;
  to.output[2] /= pixels;
  to.result = to.output;
  // The rows that some output reads.
  const int64_t rows = (node.output[1] - 1) * node.stride[1] + (node.filter[1] - 1) * node.dilation[1] + 1;
  to.input = {1, rows, to.output[2]};
  to.filter[2] = to.stride[2] = to.dilation[2] = 1;
  to.pad_begin = to.pad_end = {0, 0, 0};
  return to;
}

}  // namespace

Derived derived_of(const ConvProblem& node) {
  const auto [input, output, residual] = node.layouts;
  const bool has_nhwc_results =
      output == Layout::nhwc && (!node.epilogue.has_residual || residual == Layout::nhwc);
  if (!node.is_quantised() || node.group > 1 || !has_nhwc_results) return {node};
  if (input == Layout::nhwc && maps_pixels_to_pixels(node)) {
    const int64_t pixels = joined_pixels_of(node, [&](int64_t count) {
      return count * node.in_channels % kAlignment == 0 && node.batch * node.input_size() % count == 0;
    });
    if (pixels > 1) return {with_joined_pixels(node, pixels), pixels};
  }
  const bool is_taken =
      input == Layout::nhwc && node.in_channels % kAlignment == 0 && node.out_channels % kAlignment == 0;
  if (is_taken || node.spatial_rank > 2) return {node};
  const int64_t pixels = joined_pixels_of(node, [&](int64_t count) {
    return node.output[2] % count == 0 && (count == 1 || node.dilation[2] == 1);
  });
  if (pixels == 0) return {node};
  const int64_t columns = round_up(node.filter[2] + (pixels - 1) * node.stride[2], int64_t{kWordCodes});
  return {with_windows(node, pixels, columns), pixels, columns};
}

}  // namespace convswap::channels_last
