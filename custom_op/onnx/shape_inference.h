#pragma once

#include <cstddef>
#include <optional>

#include "onnx/api.h"

namespace convswap {

// An input as shape inference knows it.
struct InputInfo {
  OrtTensorTypeAndShapeInfo* info = nullptr;  // owned by the context
  std::optional<Shape> shape;                 // empty for an unknown rank

  InputInfo(const OrtApi& api, const OrtShapeInferContext* context, size_t index);
};

// Sets the shape of the only output, with kUnknownDimension for unknown extents. An unknown first extent
// keeps its name in `x`. The type is that of `typed`.
void set_output_shape(const OrtApi& api, OrtShapeInferContext* context, const InputInfo& x,
                      const InputInfo& typed, const Shape& shape);

}  // namespace convswap
