#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "conv/attributes.h"
#include "conv/problem.h"
#include "onnx/api.h"
#include "plan/algorithm.h"

namespace convswap {

// What an input of a node is: image, weights, bias, residual, the weights and bias of a depthwise convolution
// in front, and the scale, offset, zero point of y and values of the sum's codes of a quantised convolution.
enum Input : size_t { kX, kW, kB, kZ, kD, kDb, kScale, kOffset, kYZeroPoint, kSumValues, kInputs };

// The inputs of an op, in its order. An input that may be absent is optional.
std::span<const Input> inputs_of(OpKind op);
bool is_optional(Input input);

template <typename T>
using PerInput = std::array<T, kInputs>;

// A node's input tensors of one run; null for an absent input.
using InputTensors = PerInput<const OrtValue*>;

// The shapes of a run's inputs.
InputShapes shapes_of(const OrtApi& api, const InputTensors& tensors);

// The tensors of a run, with the addresses that `data_of` returns for the inputs.
template <typename DataOf>
ConvTensors conv_tensors(const InputTensors& inputs, void* y, DataOf data_of) {
  return {.x = data_of(inputs[kX]),
          .w = data_of(inputs[kW]),
          .b = data_of(inputs[kB]),
          .y = y,
          .z = data_of(inputs[kZ]),
          .d = data_of(inputs[kD]),
          .db = data_of(inputs[kDb]),
          .scale = data_of(inputs[kScale]),
          .offset = data_of(inputs[kOffset]),
          .sum_values = data_of(inputs[kSumValues])};
}

// An input as the model declares it.
struct DeclaredInput {
  bool is_present = false;     // an absent input has no name, or is a placeholder
  std::optional<Shape> shape;  // of a constant, or declared; empty if unknown
};
PerInput<DeclaredInput> declared_inputs(const OrtApi& api, const OrtKernelInfo* info, OpKind op);

// A shape without heap memory, for fast comparisons. Beyond the axes of a convolution only the rank is kept.
class ShapeKey {
 public:
  static constexpr size_t kMaxAxes = 5;

  ShapeKey() = default;  // an absent input
  ShapeKey(const OrtApi& api, const OrtValue* tensor);

  bool operator==(const ShapeKey&) const = default;

  bool has_extents() const { return axes_ <= static_cast<int64_t>(kMaxAxes); }

 private:
  int64_t axes_ = -1;
  std::array<int64_t, kMaxAxes> extents_{};
};

// A node's inputs. The shapes of constants are read once.
class NodeInputs {
 public:
  using Keys = PerInput<ShapeKey>;

  NodeInputs(const OrtApi& api, const OrtKernelInfo* info, OpKind op);

  // Throws OnnxRuntimeError if an input is missing that is not optional.
  InputTensors tensors(const OrtKernelContext* context) const;

  // The shapes of a run's inputs.
  Keys keys(const InputTensors& tensors) const;

  bool has_constant_weights() const { return constants_[kW].has_value(); }
  // True if all weights and biases are constant, those of a depthwise convolution in front included.
  bool has_constants_only(const InputTensors& tensors) const;

 private:
  const OrtApi& api_;
  std::span<const Input> inputs_;  // those that the node has
  PerInput<std::optional<ShapeKey>> constants_;
  PerInput<bool> is_placeholder_{};
};

}  // namespace convswap
