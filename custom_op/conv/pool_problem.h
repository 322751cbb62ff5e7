#pragma once

// A pool without a convolution: the op LayoutPool, whose tensors are NHWC.

#include <cstdint>
#include <string>

#include "conv/attributes.h"
#include "conv/layout.h"

namespace convswap {

// What a node fixes before it has an input. int8 and uint8 have maxima only.
struct PoolSpec {
  ElementType type = ElementType::float32;
  Pool pool;
};

// A pool and one concrete input shape.
struct PoolProblem {
  ElementType type = ElementType::float32;
  Pool pool;
  int64_t batch = 0;
  int64_t channels = 0;
  int64_t input[2] = {1, 1};   // rows and columns of x
  int64_t output[2] = {1, 1};  // rows and columns of y

  int64_t result_elements() const { return batch * channels * output[0] * output[1]; }
  Shape result_shape() const { return {batch, output[0], output[1], channels}; }

  // One line: "float16 x=64x10x10x128 MaxPool 5x5 strides=1x1 pads=2x2x2x2".
  std::string text() const;
};

// Reads the spec of a node. Throws InvalidArgument, also for auto_pad and dilations, which LayoutPool does
// not have.
PoolSpec read_pool_spec(const Attributes& attributes, ElementType type);

// Checks the shape of x, (N, H, W, C). Throws InvalidArgument.
PoolProblem make_pool_problem(const PoolSpec& spec, const Shape& x);

// Returns the shape of y for the declared shape of x. An unknown extent, -1, stays unknown. Throws
// InvalidArgument.
Shape pool_result_shape(const PoolSpec& spec, const Shape& x);

}  // namespace convswap
