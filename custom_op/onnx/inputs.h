#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "conv/problem.h"
#include "onnx/api.h"
#include "plan/algorithm.h"

namespace convswap {

// The inputs of a node in the op's order: the image, weights and bias, the residual, and the weights and bias
// of a depthwise convolution in front. All after the weights may be left out.
enum Input : size_t { kX, kW, kB, kZ, kD, kDb, kInputs };

template <typename T>
using PerInput = std::array<T, kInputs>;

// A node's inputs of one run; null where one is left out.
using InputTensors = PerInput<const OrtValue*>;

// The shapes of a run's inputs.
InputShapes shapes_of(const OrtApi& api, const InputTensors& tensors);

// Tensors whose memory is what `data_of` says of each input.
template <typename DataOf>
ConvTensors conv_tensors(const InputTensors& inputs, void* y, DataOf data_of) {
  return {.x = data_of(inputs[kX]),
          .w = data_of(inputs[kW]),
          .b = data_of(inputs[kB]),
          .y = y,
          .z = data_of(inputs[kZ]),
          .d = data_of(inputs[kD]),
          .db = data_of(inputs[kDb])};
}

// An input as the model tells of it: one that is left out has no name, and of one that is given the shape may
// be unknown.
struct DeclaredInput {
  bool is_given = false;
  std::optional<Shape> shape;  // of a constant, or as it is declared
};
PerInput<DeclaredInput> declared_inputs(const OrtApi& api, const OrtKernelInfo* info);

// A shape in no memory but its own, so that it is soon compared. Of more axes than a convolution has, only
// their number is kept.
class ShapeKey {
 public:
  static constexpr size_t kMostAxes = 5;

  ShapeKey() = default;  // of an input that is left out
  ShapeKey(const OrtApi& api, const OrtValue* tensor);

  bool operator==(const ShapeKey&) const = default;

 private:
  int64_t axes_ = -1;
  std::array<int64_t, kMostAxes> extents_{};
};

// A node's inputs, of which the shapes of constants are known before a run.
class NodeInputs {
 public:
  using Keys = PerInput<ShapeKey>;

  NodeInputs(const OrtApi& api, const OrtKernelInfo* info);

  // Throws OnnxRuntimeError where X or W is missing.
  InputTensors of(const OrtKernelContext* context) const;

  // The shapes of a run's inputs; those of constants are not asked for again.
  Keys keys(const InputTensors& tensors) const;

  bool has_constant_weights() const { return constants_[kW].has_value(); }
  // All weights and biases, those of a depthwise convolution in front too.
  bool has_constants_only(const InputTensors& tensors) const;

 private:
  const OrtApi& api_;
  size_t count_ = 0;
  PerInput<std::optional<ShapeKey>> constants_;
};

}  // namespace convswap
