#pragma once

#include <string>
#include <type_traits>

namespace convswap {

// The parts one behind the other, texts and whole numbers.
template <typename... Parts>
std::string joined(const Parts&... parts) {
  std::string text;
  const auto add = [&]<typename Part>(const Part& part) {
    if constexpr (std::is_integral_v<Part>) {
      text += std::to_string(part);
    } else {
      text += part;
    }
  };
  (add(parts), ...);
  return text;
}

}  // namespace convswap
