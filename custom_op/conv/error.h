#pragma once

#include <stdexcept>
#include <string>

namespace convswap {

// What the user gave cannot be computed. The message is one line that names what was given, what was
// expected and what to do.
class InvalidArgument : public std::runtime_error {
 public:
  explicit InvalidArgument(const std::string& message) : std::runtime_error(message) {}
};

}  // namespace convswap
