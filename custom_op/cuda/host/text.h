#pragma once

#include <string>

namespace convswap {

// Concatenates texts and integers.
template <typename... Parts>
std::string joined(const Parts&... parts) {
  std::string text;
  const auto add = [&](const auto& part) {
    if constexpr (requires { std::to_string(part); }) {
      text += std::to_string(part);
    } else {
      text += part;
    }
  };
  (add(parts), ...);
  return text;
}

}  // namespace convswap
