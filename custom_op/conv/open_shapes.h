#pragma once

#include <optional>

#include "conv/spec.h"

namespace convswap {

// A dimension that the model leaves open, such as the batch or the size of images.
constexpr int64_t kOpen = -1;

inline bool is_known(const Shape& shape, size_t axis) { return axis < shape.size() && shape[axis] >= 0; }

// The shapes of a node's inputs as the model declares them: kOpen for an unknown dimension, no shape for an
// unknown rank.
struct OpenShapes {
  std::optional<Shape> x, w, bias;

  // Replaces each open dimension by one that fits the others. Throws InvalidArgument if the attributes do not
  // fit the weights.
  OpenShapes filled(const ConvSpec& spec) const;
};

// Checks a node's known dimensions before its first run. Throws InvalidArgument.
void check_open_shapes(const ConvSpec& spec, const OpenShapes& shapes);

}  // namespace convswap
