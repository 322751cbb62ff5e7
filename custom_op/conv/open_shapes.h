#pragma once

#include <optional>

#include "conv/spec.h"

namespace convswap {

// A dimension that the model leaves open: the batch of most models, and more of those whose images vary.
constexpr int64_t kOpen = -1;

inline bool is_known(const Shape& shape, size_t axis) { return axis < shape.size() && shape[axis] >= 0; }

// The shapes of a node's inputs as the model has or declares them: kOpen where a dimension is not known, and
// none where not even the rank is.
struct OpenShapes {
  std::optional<Shape> x, w, bias;

  // The same with an extent that fits in place of each that is open. Throws InvalidArgument where the
  // attributes do not fit the weights.
  OpenShapes filled(const ConvSpec& spec) const;
};

// Checks what is known of a node before its first run. Throws InvalidArgument.
void check_open_shapes(const ConvSpec& spec, const OpenShapes& shapes);

}  // namespace convswap
