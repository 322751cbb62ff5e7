#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "conv/spec.h"

namespace convswap {

// One value per spatial axis: depth, height, width. Data of lower rank have leading axes of extent 1, so an
// algorithm for three axes computes every rank.
using Axes = std::array<int64_t, 3>;

// A spec and one concrete input shape: everything that an algorithm needs to know.
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
  Axes result{1, 1, 1};  // of y; `output` is of the convolution, before the epilogue's pool
  // The depthwise convolution in front, none or one. Its result, rounded to the element type, is the input of
  // this convolution: in_channels and `input` describe that result.
  std::vector<ConvProblem> depthwise;
  // The layouts of x, y and the residual, NCHW for an absent residual. The depthwise convolution in front has
  // NCHW as its own: its input is x.
  Layouts layouts;
  // Of a convolution of int8 or uint8 codes, the `type` of x and of the residual. Weights are int8, biases
  // int32, scales and offsets float32, and y has the type `y_type`.
  std::optional<Quantization> quantization;
  ElementType y_type = ElementType::int8;

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
  bool is_quantised() const { return quantization.has_value(); }
  // The type of y.
  ElementType result_type() const { return is_quantised() ? y_type : type; }

  // This convolution without the depthwise one in front, which then has an input in NCHW, without its
  // epilogue, or without the epilogue's pool.
  ConvProblem without_depthwise() const;
  ConvProblem without_epilogue() const;
  ConvProblem without_pool() const;

  // The depthwise convolution in front as a problem of its own, with x in the layout of this problem's input.
  ConvProblem depthwise_alone() const;

  // This problem with other layouts.
  ConvProblem with_layouts(const Layouts& other) const;

  // Multiplications and additions, with padding counted as data; at most 2^63 - 1.
  int64_t operations() const;

  // Total bytes of all tensors.
  int64_t tensor_bytes() const;

  // Number of bytes that must move if every tensor is read or written once. Only those rows of the input, and
  // 32-byte sectors of them, count that some output reads.
  int64_t bytes() const;

  // The shape of y in its layout: (N, K, result...) or (N, result..., K), with spatial_rank spatial axes.
  Shape result_shape() const;

  // The shape of the convolution's output, before the epilogue's pool, in a layout.
  Shape output_shape(Layout layout) const;

  // One line that identifies the problem for every algorithm, with padding resolved: "float32 tf32
  // x=10x1x28x28 w=4x1x5x5 bias=no group=1 strides=1x1 dilations=1x1 pads=0x0x0x0". An epilogue adds
  // "then=residual Relu", a depthwise convolution in front "of=(float32 tf32 x=...)". A quantised convolution
  // begins with "int8>uint8" and says after "codes=" what its arithmetic has besides; the values of scales
  // and zero points are not in the line. Extents are those of NCHW; other layouts add "layouts=NHWC>NCHW",
  // for x and y, or "layouts=NHWC+NCHW>NHWC" with a residual.
  std::string text() const;
};

struct ConvProblemHash {
  size_t operator()(const ConvProblem& problem) const;
};

// Resolves padding and checks every shape. `x` is (N, C, spatial...) or, in NHWC, (N, spatial..., C), `w` is
// (K, C / group, filter...), `bias` is (K), and `residual` has the shape of the convolution's output in the
// residual's layout. Padding follows the ONNX operator:
// with SAME_UPPER and SAME_LOWER the output has ceil(input / stride) positions, and the extra row or column
// of an odd padding goes to the end or to the beginning. Throws InvalidArgument.
ConvProblem make_problem(const ConvSpec& spec, const Shape& x, const Shape& w,
                         const std::optional<Shape>& bias = std::nullopt,
                         const std::optional<Shape>& residual = std::nullopt);

// The shapes of a node's inputs. `depthwise`, (C, 1, filter...), and `depthwise_bias`, (C), are those of a
// depthwise convolution of x in front.
struct InputShapes {
  Shape x, w;
  std::optional<Shape> bias, residual, depthwise, depthwise_bias;
  // Of a quantised convolution: (K), (K) and (kCodeCount).
  std::optional<Shape> scale, offset, sum_values;
};
ConvProblem make_problem(const ConvSpec& spec, const InputShapes& shapes);

// Throws InvalidArgument unless a quantised convolution has `sum_values` exactly if its attributes ask for
// them.
void check_sum_values(const Quantization& quantization, bool has_sum_values);

}  // namespace convswap
