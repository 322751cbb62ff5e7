// The attributes of LayoutConv, which has those of Conv and FusedConv, and of QuantConv, as keyword arguments
// from Python.

#include "conv/attributes.h"

#include <pybind11/stl.h>

#include <vector>

#include "bindings.h"
#include "conv/error.h"

namespace py = pybind11;

namespace convswap::bindings {
namespace {

template <typename T>
constexpr const char* kTypeName = "a list of whole numbers";
template <>
constexpr const char* kTypeName<std::string> = "a string";
template <>
constexpr const char* kTypeName<int64_t> = "a whole number";
template <>
constexpr const char* kTypeName<float> = "a number";

// Reading an argument removes it, so that unknown arguments remain at the end.
class Keywords final : public Attributes {
 public:
  explicit Keywords(const py::kwargs& arguments) : unread_(arguments.attr("copy")()) {}

  std::optional<int64_t> integer(const char* name) const override { return take<int64_t>(name); }
  std::optional<float> real(const char* name) const override { return take<float>(name); }
  std::optional<std::string> text(const char* name) const override { return take<std::string>(name); }
  std::vector<int64_t> integers(const char* name) const override {
    return take<Shape>(name).value_or(Shape{});
  }

  void check_all_read() const {
    for (const auto& item : unread_) {
      throw InvalidArgument(unknown_name_message("attribute", std::string(py::str(item.first)), known_));
    }
  }

 private:
  template <typename T>
  std::optional<T> take(const char* name) const {
    known_.emplace_back(name);
    if (!unread_.contains(name)) return std::nullopt;
    const py::object value = unread_.attr("pop")(name);
    try {
      return value.cast<T>();
    } catch (const py::cast_error&) {
      throw InvalidArgument(attribute_message(name, std::string(py::repr(value)), kTypeName<T>));
    }
  }

  py::dict unread_;
  mutable std::vector<std::string> known_;
};

}  // namespace

ConvSpec spec_of(ElementType type, const std::string& precision, const py::kwargs& attributes) {
  const Keywords keywords(attributes);
  const OpKind op = is_code(type) ? OpKind::quant : OpKind::layout;
  ConvSpec spec = read_spec(op, keywords, type, parse_precision(precision));
  if (spec.quantization) {
    // In a model these follow from inputs.
    const std::optional<std::string> word = keywords.text("y_type");
    spec.y_type = word ? parse_element_type(*word) : type;
    spec.quantization->y_zero_point = static_cast<int>(keywords.integer("y_zero_point").value_or(0));
    spec.quantization->has_offset = keywords.integer("has_offset").value_or(0) != 0;
  }
  keywords.check_all_read();
  return spec;
}

}  // namespace convswap::bindings
