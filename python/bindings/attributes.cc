// The attributes of a convolution and of what is fused with it, as keyword arguments from Python.

#include <pybind11/stl.h>

#include <vector>

#include "bindings.h"
#include "conv/epilogue_attributes.h"
#include "conv/error.h"

namespace py = pybind11;

namespace convswap::bindings {
namespace {

template <typename T>
constexpr const char* kWords = "a list of whole numbers";
template <>
constexpr const char* kWords<std::string> = "a string";
template <>
constexpr const char* kWords<int64_t> = "a whole number";
template <>
constexpr const char* kWords<float> = "a number";

// Takes each argument out, so that what is left in the end is known by no one.
class Keywords {
 public:
  explicit Keywords(const py::kwargs& given) : left_(given.attr("copy")()) {}

  template <typename T>
  T take(const char* name, T absent) {
    return take<T>(name).value_or(std::move(absent));
  }

  template <typename T>
  std::optional<T> take(const char* name) {
    known_.emplace_back(name);
    if (!left_.contains(name)) return std::nullopt;
    const py::object value = left_.attr("pop")(name);
    try {
      return value.cast<T>();
    } catch (const py::cast_error&) {
      throw InvalidArgument(attribute_message(name, std::string(py::repr(value)), kWords<T>));
    }
  }

  void check_all_taken() const {
    for (const auto& item : left_) {
      throw InvalidArgument(unknown_name_message("attribute", std::string(py::str(item.first)), known_));
    }
  }

 private:
  py::dict left_;
  std::vector<std::string> known_;
};

Epilogue take_epilogue(Keywords& keywords, ElementType type) {
  Epilogue epilogue;
  const Activation activation = parse_activation(keywords.take<std::string>("activation", "None"));
  const std::optional<float> alpha = keywords.take<float>("activation_alpha");
  set_activation(epilogue, type, activation, alpha, keywords.take<float>("activation_beta"));
  const PoolKind kind = parse_pool_kind(keywords.take<std::string>("pool", "None"));
  const auto kernel_shape = keywords.take<Shape>("pool_kernel_shape", {});
  const auto strides = keywords.take<Shape>("pool_strides", {});
  const auto pads = keywords.take<Shape>("pool_pads", {});
  const auto rounds_up = keywords.take<int64_t>("pool_ceil_mode", 0) != 0;
  const auto counts_padding = keywords.take<int64_t>("pool_count_include_pad", 0) != 0;
  epilogue.pool = make_pool(kind, kernel_shape, strides, pads, rounds_up, counts_padding);
  return epilogue;
}

DepthwiseSpec take_depthwise(Keywords& keywords, ElementType type) {
  DepthwiseSpec depthwise;
  depthwise.pads = keywords.take<Shape>("depthwise_pads", {});
  depthwise.strides = keywords.take<Shape>("depthwise_strides", {});
  depthwise.dilations = keywords.take<Shape>("depthwise_dilations", {});
  const Activation activation = parse_activation(keywords.take<std::string>("depthwise_activation", "None"));
  const std::optional<float> alpha = keywords.take<float>("depthwise_activation_alpha");
  set_activation(depthwise.epilogue, type, activation, alpha,
                 keywords.take<float>("depthwise_activation_beta"));
  return depthwise;
}

}  // namespace

ConvSpec spec_of(ElementType type, const std::string& precision, const py::kwargs& attributes) {
  Keywords keywords(attributes);
  ConvSpec spec;
  spec.type = type;
  spec.precision = parse_precision(precision);
  spec.auto_pad = parse_auto_pad(keywords.take<std::string>("auto_pad", "NOTSET"));
  spec.group = keywords.take<int64_t>("group", 1);
  spec.kernel_shape = keywords.take<Shape>("kernel_shape", {});
  spec.pads = keywords.take<Shape>("pads", {});
  spec.strides = keywords.take<Shape>("strides", {});
  spec.dilations = keywords.take<Shape>("dilations", {});
  spec.epilogue = take_epilogue(keywords, type);
  spec.depthwise = take_depthwise(keywords, type);
  keywords.check_all_taken();
  return spec;
}

}  // namespace convswap::bindings
