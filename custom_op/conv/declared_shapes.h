#pragma once

#include <optional>

#include "conv/spec.h"

namespace convswap {

// A dimension that the model does not fix, such as a dynamic batch or image size.
constexpr int64_t kUnknownDimension = -1;

inline bool is_known(const Shape& shape, size_t axis) { return axis < shape.size() && shape[axis] >= 0; }

// The shapes of a node's inputs as the model declares them, x in the spec's layout. Unknown dimensions are
// kUnknownDimension; an input of unknown rank has no shape.
struct DeclaredShapes {
  std::optional<Shape> x, w, bias;

  // Replaces each unknown dimension by a value that fits the known ones. Throws InvalidArgument if the
  // attributes do not fit the weights.
  DeclaredShapes filled(const ConvSpec& spec) const;
};

// Checks a node's known dimensions before its first run. Throws InvalidArgument.
void check_declared_shapes(const ConvSpec& spec, const DeclaredShapes& shapes);

}  // namespace convswap
