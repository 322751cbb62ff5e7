#pragma once

// The op Mul: an NHWC tensor times factors that are the same at all positions of an image.

#include <cstdint>
#include <optional>
#include <string>

#include "conv/attributes.h"
#include "conv/layout.h"

namespace convswap {

// What does not depend on the shapes of a run.
struct MulSpec {
  ElementType type = ElementType::float32;
};

// A product and one concrete input shape.
struct MulProblem {
  ElementType type = ElementType::float32;
  int64_t images = 0;
  int64_t positions = 0;  // of an image
  int64_t channels = 0;

  int64_t image_elements() const { return positions * channels; }
  int64_t result_elements() const { return images * image_elements(); }

  // One line: "float16 64 images of 12544 x 32".
  std::string text() const;
};

// Reads the spec of a node, which has no attributes.
MulSpec read_mul_spec(const Attributes& attributes, ElementType type);

// Checks the shapes of a node's inputs, declared ones or those of a run; unknown extents are -1. Throws
// InvalidArgument.
void check_mul_shapes(const Shape& x, const std::optional<Shape>& factors);

// The problem for a checked shape of x.
MulProblem make_mul_problem(const MulSpec& spec, const Shape& x);

}  // namespace convswap
