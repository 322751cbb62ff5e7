#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "conv/spec.h"

namespace convswap {

// One value per spatial axis: depth, height, width. Data of lower rank have leading axes of extent 1, so
// that an algorithm that knows three axes knows them all.
using Axes = std::array<int64_t, 3>;

// A spec and one concrete input shape: everything an algorithm needs to know.
struct ConvProblem {
  ElementType type = ElementType::float32;
  Precision precision = Precision::tf32;
  int spatial_rank = 2;
  bool has_bias = false;
  int64_t batch = 0;
  int64_t in_channels = 0;
  int64_t out_channels = 0;
  int64_t group = 1;
  Axes input{1, 1, 1};
  Axes filter{1, 1, 1};
  Axes output{1, 1, 1};
  Axes stride{1, 1, 1};
  Axes dilation{1, 1, 1};
  Axes pad_begin{0, 0, 0};
  Axes pad_end{0, 0, 0};
  Epilogue epilogue;
  Axes result{1, 1, 1};  // of y: `output` is the convolution's, before the epilogue's pool
  // The depthwise convolution that is computed with it, whose result, rounded to the element type, is what
  // this one convolves: none or one. The channels and the extents of the input above are those of its result.
  std::vector<ConvProblem> before;

  bool operator==(const ConvProblem&) const = default;

  int64_t channels_per_group() const { return in_channels / group; }
  int64_t filters_per_group() const { return out_channels / group; }
  int64_t input_size() const { return input[0] * input[1] * input[2]; }
  int64_t filter_size() const { return filter[0] * filter[1] * filter[2]; }
  int64_t output_size() const { return output[0] * output[1] * output[2]; }
  int64_t output_elements() const { return batch * out_channels * output_size(); }
  int64_t result_size() const { return result[0] * result[1] * result[2]; }
  int64_t result_elements() const { return batch * out_channels * result_size(); }

  // One channel and one filter in each group.
  bool is_depthwise() const { return channels_per_group() == 1 && filters_per_group() == 1; }
  // Several groups, of more than that.
  bool is_grouped() const { return group > 1 && !is_depthwise(); }

  // The convolution alone, of its own input, or without what follows it.
  ConvProblem without_depthwise() const;
  ConvProblem without_epilogue() const;

  // Multiplications and additions, padding counted as data; 2^63 - 1 where they are more.
  int64_t operations() const;

  // Bytes of all tensors.
  int64_t tensor_bytes() const;

  // Bytes that must move if every tensor is read or written once; of the input those rows, and of these those
  // sectors of 32 bytes, that outputs read.
  int64_t bytes() const;

  // Of y: (N, K, result...), with spatial_rank spatial axes.
  Shape result_shape() const;

  // One line that two problems share only where no algorithm can tell them apart, padding resolved:
  // "float32 tf32 x=10x1x28x28 w=4x1x5x5 bias=no group=1 strides=1x1 dilations=1x1 pads=0x0x0x0", and what is
  // fused: "then=residual Relu", "of=(float32 tf32 x=...)" for a depthwise convolution in front.
  std::string text() const;
};

struct ConvProblemHash {
  size_t operator()(const ConvProblem& problem) const;
};

// Resolves padding and checks every shape. `x` is (N, C, spatial...), `w` is (K, C / group, filter...);
// `bias`, where there is one, (K), and `residual` the shape of the convolution's output. Padding follows the
// ONNX operator: with SAME_UPPER and SAME_LOWER the output has ceil(input / stride) positions and an odd pad
// goes to the end or to the beginning. Throws InvalidArgument.
ConvProblem make_problem(const ConvSpec& spec, const Shape& x, const Shape& w,
                         const std::optional<Shape>& bias = std::nullopt,
                         const std::optional<Shape>& residual = std::nullopt);

// The shapes of a node's inputs. `depthwise` is (C, 1, filter...), of a depthwise convolution of x in front,
// `depthwise_bias` (C).
struct InputShapes {
  Shape x, w;
  std::optional<Shape> bias, residual, depthwise, depthwise_bias;
};
ConvProblem make_problem(const ConvSpec& spec, const InputShapes& shapes);

}  // namespace convswap
