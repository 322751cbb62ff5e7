#pragma once

// The op LayerNormalization, over the last axis.

#include <cstdint>
#include <optional>
#include <string>

#include "conv/attributes.h"
#include "conv/layout.h"

namespace convswap {

// What does not depend on the shapes of a run.
struct LayerNormSpec {
  ElementType type = ElementType::float32;
  int64_t axis = -1;
  float epsilon = 1e-5f;
};

// A normalisation and one concrete input shape. A row is the elements along the last axis.
struct LayerNormProblem {
  ElementType type = ElementType::float32;
  float epsilon = 1e-5f;
  int64_t rows = 0;
  int64_t length = 0;  // elements of a row

  int64_t result_elements() const { return rows * length; }

  // One line: "float16 200704 rows of 96".
  std::string text() const;
};

// Reads the spec of a node. Throws InvalidArgument.
LayerNormSpec read_layer_norm_spec(const Attributes& attributes, ElementType type);

// Checks the shapes of a node's inputs, declared ones or those of a run; unknown extents are -1. Throws
// InvalidArgument.
void check_layer_norm_shapes(const LayerNormSpec& spec, const Shape& x, const std::optional<Shape>& scale,
                             const std::optional<Shape>& bias);

// The problem for a checked shape of x.
LayerNormProblem make_layer_norm_problem(const LayerNormSpec& spec, const Shape& x);

}  // namespace convswap
