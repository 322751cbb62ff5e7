#include "conv/declared_shapes.h"

#include <algorithm>
#include <string>
#include <utility>

#include "conv/error.h"
#include "conv/problem.h"

namespace convswap {
namespace {

int64_t known_or(const Shape& shape, size_t axis, int64_t fallback) {
  return is_known(shape, axis) ? shape[axis] : fallback;
}

bool has_unknown(const std::optional<Shape>& shape) {
  return shape && std::find(shape->begin(), shape->end(), kUnknownDimension) != shape->end();
}

// Returns the number of filters if the weights do not tell: the number of biases if known, else one per
// group.
int64_t filters_of(const ConvSpec& spec, const std::optional<Shape>& bias) {
  return bias && bias->size() == 1 ? known_or(*bias, 0, spec.group) : spec.group;
}

}  // namespace

DeclaredShapes DeclaredShapes::filled(const ConvSpec& spec) const {
  DeclaredShapes complete = *this;
  if (!x && !w) return complete;
  if (!w) complete.w.emplace(x->size(), kUnknownDimension);
  if (!x) complete.x.emplace(w->size(), kUnknownDimension);
  Shape& filters = *complete.w;
  Shape image = to_nchw(*std::move(complete.x), spec.layouts.input);
  const size_t spatial_rank = std::max<size_t>(filters.size(), 2) - 2;
  const bool has_channels = is_known(filters, 1);

  for (size_t axis = 0; axis < filters.size(); ++axis) {
    const int64_t extent = axis == 0   ? filters_of(spec, bias)
                           : axis == 1 ? 1
                                       : known_or(spec.kernel_shape, axis - 2, 1);
    filters[axis] = known_or(filters, axis, extent);
  }
  // Checked before any multiplication: a model may declare any number.
  check_spec(spec);
  check_weights(spec, filters);

  for (size_t axis = 0; axis < image.size(); ++axis) {
    int64_t extent = 1;
    if (axis == 1) {
      // make_problem reports an overflow of 64 bits.
      if (__builtin_mul_overflow(filters[1], spec.group, &extent)) extent = 1;
      // If the weights' channel count is unknown, any channel count of the image fits.
      if (!has_channels) image[axis] = extent;
    } else if (const size_t i = axis - 2; axis > 1 && i < spatial_rank) {
      const int64_t dilation = i < spec.dilations.size() ? spec.dilations[i] : 1;
      const int64_t stride = i < spec.strides.size() ? spec.strides[i] : 1;
      // At least one whole pool window.
      const int64_t outputs = i < 2 ? spec.epilogue.pool.kernel[i] : 1;
      extent = (filters[axis] - 1) * dilation + (outputs - 1) * stride + 1;
    }
    image[axis] = known_or(image, axis, extent);
  }
  complete.x = from_nchw(std::move(image), spec.layouts.input);
  if (bias) {
    for (int64_t& extent : *complete.bias) {
      if (extent == kUnknownDimension) extent = filters[0];
    }
  }
  return complete;
}

void check_declared_shapes(const ConvSpec& spec, const DeclaredShapes& shapes) {
  check_spec(spec);
  if (!shapes.x && !shapes.w) return;
  const bool has_weights = shapes.w && !has_unknown(shapes.w);
  if (has_weights) check_weights(spec, *shapes.w);
  const bool is_incomplete = !has_weights || !shapes.x || has_unknown(shapes.x) || has_unknown(shapes.bias);
  try {
    const DeclaredShapes complete = shapes.filled(spec);
    make_problem(spec, *complete.x, *complete.w, complete.bias);
  } catch (const InvalidArgument& error) {
    if (!is_incomplete) throw;
    throw InvalidArgument(std::string(error.what()) +
                          "; unknown dimensions were replaced by values that fit");
  }
}

}  // namespace convswap
