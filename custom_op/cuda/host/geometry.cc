#include "cuda/host/geometry.h"

#include <cstdint>

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

}  // namespace convswap
