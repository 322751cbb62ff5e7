#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace convswap {

// The user's input cannot be computed. The message is one line: the given value, the expected value and the
// remedy.
class InvalidArgument : public std::runtime_error {
 public:
  explicit InvalidArgument(const std::string& message) : std::runtime_error(message) {}
};

// One function builds each kind of message, with an example above it.

// "[1, 3, 224, 224]"
std::string list_text(const std::vector<int64_t>& values);

// "strides [0, 1]: expected 2 values from 1 to 2147483647"
std::string attribute_message(std::string_view attribute, std::string_view value, std::string_view expected);

// "weights of shape [8, 3, 3, 3]: expected ..."
std::string shape_message(std::string_view tensor, const std::vector<int64_t>& shape,
                          std::string_view expected);

// "algorithm 'few_channels' cannot compute this convolution: <reason>; use algorithm 'auto'"
std::string unsupported_message(std::string_view algorithm, std::string_view reason);

// "no algorithm for the device cuda can compute this convolution: naive: <reason>; ..."
std::string none_supports_message(std::string_view device, std::string_view reasons);

// "unknown algorithm for the device cuda 'nave'; did you mean 'naive'?"
std::string unknown_name_message(std::string_view kind, std::string_view value,
                                 const std::vector<std::string>& known);

}  // namespace convswap
