#include "conv/layout.h"

#include <algorithm>

#include "conv/error.h"

namespace convswap {
namespace {

constexpr size_t kMinAxes = 3;  // batch, channels and one spatial axis

}  // namespace

std::string_view name_of(Layout layout) { return layout == Layout::nhwc ? "NHWC" : "NCHW"; }

std::string_view axes_of(Layout layout) {
  return layout == Layout::nhwc ? "(N, spatial..., C)" : "(N, C, spatial...)";
}

Layout parse_layout(std::string_view attribute, std::string_view word) {
  for (const Layout layout : {Layout::nchw, Layout::nhwc}) {
    if (word == name_of(layout)) return layout;
  }
  throw InvalidArgument(unknown_name_message(
      attribute, word, {std::string(name_of(Layout::nchw)), std::string(name_of(Layout::nhwc))}));
}

Shape to_nchw(Shape shape, Layout layout) {
  if (layout == Layout::nhwc && shape.size() >= kMinAxes) {
    std::rotate(shape.begin() + 1, shape.end() - 1, shape.end());
  }
  return shape;
}

Shape from_nchw(Shape shape, Layout layout) {
  if (layout == Layout::nhwc && shape.size() >= kMinAxes) {
    std::rotate(shape.begin() + 1, shape.begin() + 2, shape.end());
  }
  return shape;
}

}  // namespace convswap
