#include "conv/spec.h"

#include <functional>

#include "conv/error.h"

namespace convswap {
namespace {

struct ElementTypeFacts {
  ElementType type;
  std::string_view name;
  int64_t size;
};

constexpr ElementTypeFacts kElementTypes[] = {
    {ElementType::float32, "float32", 4}, {ElementType::float64, "float64", 8},
    {ElementType::float16, "float16", 2}, {ElementType::bfloat16, "bfloat16", 2},
    {ElementType::int8, "int8", 1},       {ElementType::uint8, "uint8", 1},
    {ElementType::int32, "int32", 4}};

const ElementTypeFacts& facts_of(ElementType type) { return kElementTypes[static_cast<size_t>(type)]; }

void check_range(std::string_view attribute, const std::vector<int64_t>& values, int64_t min) {
  for (const int64_t value : values) {
    if (value < min || value > kMaxAttribute) {
      throw InvalidArgument(
          attribute_message(attribute, list_text(values),
                            "values from " + std::to_string(min) + " to " + std::to_string(kMaxAttribute)));
    }
  }
}

void check_length(std::string_view attribute, const std::vector<int64_t>& values, size_t length,
                  const std::function<std::string()>& reason) {
  if (!values.empty() && values.size() != length) {
    throw InvalidArgument(
        attribute_message(attribute, list_text(values), std::to_string(length) + " values, " + reason()));
  }
}

// `reason` explains the expected lengths. It is a callback because every run of a node comes through here.
void check_lengths(const ConvSpec& spec, size_t spatial_rank, const std::function<std::string()>& reason) {
  check_length("kernel_shape", spec.kernel_shape, spatial_rank, reason);
  check_length("strides", spec.strides, spatial_rank, reason);
  check_length("dilations", spec.dilations, spatial_rank, reason);
  check_length("pads", spec.pads, 2 * spatial_rank, reason);
}

// Returns the number of spatial axes that the first present attribute implies; 0 without any.
size_t implied_spatial_rank(const ConvSpec& spec) {
  if (!spec.kernel_shape.empty()) return spec.kernel_shape.size();
  if (!spec.strides.empty()) return spec.strides.size();
  if (!spec.dilations.empty()) return spec.dilations.size();
  return spec.pads.size() / 2;
}

}  // namespace

Precision parse_precision(std::string_view word) {
  if (word == "tf32") return Precision::tf32;
  if (word == "ieee") return Precision::ieee;
  throw InvalidArgument(unknown_name_message("precision", word, {"tf32", "ieee"}));
}

AutoPad parse_auto_pad(std::string_view word) {
  if (word == "NOTSET" || word.empty()) return AutoPad::notset;
  if (word == "SAME_UPPER") return AutoPad::same_upper;
  if (word == "SAME_LOWER") return AutoPad::same_lower;
  if (word == "VALID") return AutoPad::valid;
  throw InvalidArgument(
      unknown_name_message("auto_pad", word, {"NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"}));
}

ElementType parse_element_type(std::string_view word) {
  std::vector<std::string> names;
  for (const ElementTypeFacts& facts : kElementTypes) {
    if (facts.type == ElementType::int32) continue;  // of biases alone
    if (word == facts.name) return facts.type;
    names.emplace_back(facts.name);
  }
  throw InvalidArgument(unknown_name_message("element type", word, names));
}

std::string_view name_of(Precision precision) { return precision == Precision::tf32 ? "tf32" : "ieee"; }

std::string_view name_of(ElementType type) { return facts_of(type).name; }

int64_t bytes_per_element(ElementType type) { return facts_of(type).size; }

void check_spec(const ConvSpec& spec) {
  check_range("group", {spec.group}, 1);
  check_range("kernel_shape", spec.kernel_shape, 1);
  check_range("strides", spec.strides, 1);
  check_range("dilations", spec.dilations, 1);
  check_range("pads", spec.pads, 0);
  if (spec.pads.size() % 2 != 0) {
    throw InvalidArgument(
        attribute_message("pads", list_text(spec.pads), "an even number of values, begins then ends"));
  }
  if (const size_t spatial_rank = implied_spatial_rank(spec); spatial_rank > 0) {
    check_lengths(spec, spatial_rank, [] { return "as many spatial axes as the other attributes have"; });
  }
}

ConvSpec depthwise_spec(const ConvSpec& spec, int64_t channels) {
  ConvSpec result;
  result.type = spec.type;
  result.precision = spec.precision;
  result.group = channels;
  result.pads = spec.depthwise.pads;
  result.strides = spec.depthwise.strides;
  result.dilations = spec.depthwise.dilations;
  result.epilogue = spec.depthwise.epilogue;
  result.layouts.input = spec.layouts.input;
  return result;
}

ConvSpec spec_behind_depthwise(const ConvSpec& spec) {
  ConvSpec result = spec;
  result.layouts.input = Layout::nchw;
  result.depthwise = {};
  return result;
}

void check_weights(const ConvSpec& spec, const Shape& weights) {
  if (weights.size() < 3 || weights.size() > 5) {
    throw InvalidArgument(
        shape_message("weights", weights, "3, 4 or 5 dimensions: (K, C / group, filter...)"));
  }
  const Shape filter(weights.begin() + 2, weights.end());
  check_lengths(spec, filter.size(), [&] {
    return "for the " + std::to_string(filter.size()) + " spatial axes of the weights " + list_text(weights);
  });
  if (!spec.kernel_shape.empty() && spec.kernel_shape != filter) {
    throw InvalidArgument(attribute_message("kernel_shape", list_text(spec.kernel_shape),
                                            "the filter of the weights, " + list_text(filter)));
  }
  check_range("the filter of the weights", filter, 1);
  if (weights[0] % spec.group != 0) {
    throw InvalidArgument(
        attribute_message("group", std::to_string(spec.group),
                          "a divisor of the weights' " + std::to_string(weights[0]) + " output channels"));
  }
}

}  // namespace convswap
