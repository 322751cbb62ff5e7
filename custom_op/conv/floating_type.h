#pragma once

#include "conv/small_floats.h"
#include "conv/spec.h"

namespace convswap {

// Calls `call` with the C++ type of a floating-point element type as its template argument.
template <typename Call>
auto with_floating_type(ElementType type, Call call) {
  switch (type) {
    case ElementType::float64:
      return call.template operator()<double>();
    case ElementType::float16:
      return call.template operator()<Float16>();
    case ElementType::bfloat16:
      return call.template operator()<BFloat16>();
    default:
      return call.template operator()<float>();
  }
}

}  // namespace convswap
