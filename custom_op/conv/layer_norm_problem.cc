#include "conv/layer_norm_problem.h"

#include <functional>
#include <numeric>

#include "conv/error.h"

namespace convswap {
namespace {

void check_parameter(const char* name, const std::optional<Shape>& shape, int64_t length) {
  if (!shape) return;
  const bool fits = shape->size() == 1 && ((*shape)[0] == length || (*shape)[0] < 0 || length < 0);
  if (fits) return;
  const std::string extent = length < 0 ? "one dimension" : list_text({length});
  throw InvalidArgument(shape_message(name, *shape, extent + ", one value per element of a row"));
}

}  // namespace

std::string LayerNormProblem::text() const {
  return std::string(name_of(type)) + " " + std::to_string(rows) + " rows of " + std::to_string(length);
}

LayerNormSpec read_layer_norm_spec(const Attributes& attributes, ElementType type) {
  LayerNormSpec spec{.type = type};
  spec.axis = attributes.integer("axis").value_or(spec.axis);
  spec.epsilon = attributes.real("epsilon").value_or(spec.epsilon);
  if (!(spec.epsilon >= 0)) {
    throw InvalidArgument(attribute_message("epsilon", std::to_string(spec.epsilon), "a number from 0"));
  }
  return spec;
}

void check_layer_norm_shapes(const LayerNormSpec& spec, const Shape& x, const std::optional<Shape>& scale,
                             const std::optional<Shape>& bias) {
  if (x.empty()) throw InvalidArgument(shape_message("input", x, "at least one dimension"));
  const auto last = static_cast<int64_t>(x.size()) - 1;
  if (spec.axis != -1 && spec.axis != last) {
    throw InvalidArgument(attribute_message(
        "axis", std::to_string(spec.axis),
        "the last axis of the input of shape " + list_text(x) + ", -1 or " + std::to_string(last)));
  }
  check_parameter("scale", scale, x.back());
  check_parameter("bias", bias, x.back());
}

LayerNormProblem make_layer_norm_problem(const LayerNormSpec& spec, const Shape& x) {
  const int64_t rows = std::accumulate(x.begin(), x.end() - 1, int64_t{1}, std::multiplies<>());
  return {spec.type, spec.epsilon, rows, x.back()};
}

}  // namespace convswap
