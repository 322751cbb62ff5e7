#pragma once

#include <string>

namespace convswap {

// The parts one behind the other, texts and whole numbers.
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
