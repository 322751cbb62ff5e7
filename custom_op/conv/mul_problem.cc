#include "conv/mul_problem.h"

#include <functional>
#include <numeric>

#include "conv/error.h"

namespace convswap {

std::string MulProblem::text() const {
  return std::string(name_of(type)) + " " + std::to_string(images) + " images of " +
         std::to_string(positions) + " x " + std::to_string(channels);
}

MulSpec read_mul_spec(const Attributes&, ElementType type) { return {type}; }

void check_mul_shapes(const Shape& x, const std::optional<Shape>& factors) {
  if (x.size() < 3) throw InvalidArgument(shape_message("input", x, "at least three dimensions (N, ..., C)"));
  if (!factors) return;
  Shape expected(x.size(), 1);
  expected.front() = x.front(), expected.back() = x.back();
  bool fits = factors->size() == x.size();
  for (size_t axis = 0; fits && axis < x.size(); ++axis) {
    const int64_t actual = (*factors)[axis];
    fits = actual == expected[axis] || actual < 0 || expected[axis] < 0;
  }
  if (fits) return;
  throw InvalidArgument(
      shape_message("factors", *factors, list_text(expected) + ", one factor per image and channel"));
}

MulProblem make_mul_problem(const MulSpec& spec, const Shape& x) {
  const int64_t positions = std::accumulate(x.begin() + 1, x.end() - 1, int64_t{1}, std::multiplies<>());
  return {spec.type, x.front(), positions, x.back()};
}

}  // namespace convswap
