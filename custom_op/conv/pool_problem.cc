#include "conv/pool_problem.h"

#include <algorithm>
#include <vector>

#include "conv/declared_shapes.h"
#include "conv/error.h"

namespace convswap {
namespace {

constexpr size_t kAxes = 4;

void check_rank(const Shape& x) {
  if (x.size() != kAxes) throw InvalidArgument(shape_message("input", x, "4 dimensions: (N, H, W, C)"));
}

// Throws if the number of elements needs more than 63 bits.
void check_size(const char* tensor, const Shape& shape) {
  int64_t elements = 1;
  for (const int64_t extent : shape) {
    if (extent == 0) return;
  }
  for (const int64_t extent : shape) {
    if (__builtin_mul_overflow(elements, extent, &elements)) {
      throw InvalidArgument(shape_message(tensor, shape, "at most 2^63 - 1 elements"));
    }
  }
}

}  // namespace

std::string PoolProblem::text() const {
  Epilogue epilogue;
  epilogue.pool = pool;
  std::string extents = std::to_string(batch);
  for (const int64_t extent : {input[0], input[1], channels}) extents += "x" + std::to_string(extent);
  return std::string(name_of(type)) + " x=" + extents + " " + text_of(epilogue);
}

PoolSpec read_pool_spec(const Attributes& attributes, ElementType type) {
  PoolSpec spec{type, read_pool(attributes, PoolOwner::pool)};
  if (spec.pool.kind == PoolKind::none) {
    throw InvalidArgument(attribute_message("pool", "None", "MaxPool or AveragePool"));
  }
  if (is_code(type) && spec.pool.kind != PoolKind::max) {
    throw InvalidArgument(
        attribute_message("pool", "AveragePool", "MaxPool for " + std::string(name_of(type)) + " data"));
  }
  if (const std::string word = attributes.text("auto_pad").value_or("NOTSET"); word != "NOTSET") {
    throw InvalidArgument(attribute_message("auto_pad", word, "no such attribute of LayoutPool: give pads"));
  }
  const std::vector<int64_t> dilations = attributes.integers("dilations");
  if (std::ranges::any_of(dilations, [](int64_t dilation) { return dilation != 1; })) {
    throw InvalidArgument(
        attribute_message("dilations", list_text(dilations), "no such attribute of LayoutPool, or ones"));
  }
  return spec;
}

PoolProblem make_pool_problem(const PoolSpec& spec, const Shape& x) {
  check_rank(x);
  PoolProblem problem{.type = spec.type, .pool = spec.pool, .batch = x[0], .channels = x[3]};
  for (size_t axis = 0; axis < 2; ++axis) {
    problem.input[axis] = x[axis + 1];
    problem.output[axis] = pool_extent(spec.pool, axis, x[axis + 1], PoolOwner::pool);
  }
  check_size("input", x);
  check_size("output", problem.result_shape());
  if (problem.result_elements() > 0 && problem.input[0] * problem.input[1] == 0) {
    throw InvalidArgument(shape_message("input", x, "at least one row and one column"));
  }
  return problem;
}

Shape pool_result_shape(const PoolSpec& spec, const Shape& x) {
  check_rank(x);
  Shape result = x;
  for (size_t axis = 0; axis < 2; ++axis) {
    if (is_known(x, axis + 1)) result[axis + 1] = pool_extent(spec.pool, axis, x[axis + 1], PoolOwner::pool);
  }
  return result;
}

}  // namespace convswap
