#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "onnx/api.h"

namespace convswap {

// A node's inputs of one run; null where one is left out.
struct InputTensors {
  const OrtValue *x = nullptr, *w = nullptr, *b = nullptr, *z = nullptr, *d = nullptr, *db = nullptr;
};

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
  static constexpr size_t kMost = 6;
  using Keys = std::array<ShapeKey, kMost>;

  NodeInputs(const OrtApi& api, const OrtKernelInfo* info);

  // Throws OnnxRuntimeError where X or W is missing.
  InputTensors of(const OrtKernelContext* context) const;

  // The shapes of a run's inputs; those of constants are not asked for again.
  Keys keys(const InputTensors& tensors) const;

  bool has_constant_weights() const { return constants_[1].has_value(); }
  // All weights and biases, those of a depthwise convolution in front too.
  bool has_constants_only(const InputTensors& tensors) const {
    const auto stays = [&](const OrtValue* tensor, size_t index) {
      return tensor == nullptr || constants_[index];
    };
    return has_constant_weights() && stays(tensors.b, 2) && stays(tensors.d, 4) && stays(tensors.db, 5);
  }

 private:
  const OrtValue* input(const OrtKernelContext* context, size_t index) const;

  const OrtApi& api_;
  size_t count_ = 0;
  std::array<std::optional<ShapeKey>, kMost> constants_;
};

}  // namespace convswap
