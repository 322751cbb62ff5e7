#include "conv/error.h"

#include <algorithm>
#include <cstddef>

namespace convswap {
namespace {

// Levenshtein distance: the fewest letters to insert, delete or replace.
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = row[j];
      row[j] = std::min({replaced, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

}  // namespace

std::string list_text(const std::vector<int64_t>& values) {
  std::string text = "[";
  for (size_t i = 0; i < values.size(); ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(values[i]);
  }
  return text + "]";
}

std::string attribute_message(std::string_view attribute, std::string_view value, std::string_view expected) {
  return std::string(attribute) + " " + std::string(value) + ": expected " + std::string(expected);
}

std::string shape_message(std::string_view tensor, const std::vector<int64_t>& shape,
                          std::string_view expected) {
  return std::string(tensor) + " of shape " + list_text(shape) + ": expected " + std::string(expected);
}

std::string unsupported_message(std::string_view algorithm, std::string_view reason) {
  return "algorithm '" + std::string(algorithm) +
         "' cannot compute this convolution: " + std::string(reason) +
         "; use algorithm 'auto', which selects one that can";
}

std::string none_supports_message(std::string_view device, std::string_view reasons) {
  return "no algorithm for the device " + std::string(device) +
         " can compute this convolution: " + std::string(reasons);
}

std::string unknown_name_message(std::string_view kind, std::string_view value,
                                 const std::vector<std::string>& known) {
  std::string message = "unknown " + std::string(kind) + " '" + std::string(value) + "'; ";
  const auto nearest = std::min_element(known.begin(), known.end(), [&](const auto& a, const auto& b) {
    return edit_distance(value, a) < edit_distance(value, b);
  });
  // A name of which more than half the letters differ is no typing error.
  if (nearest != known.end() && edit_distance(value, *nearest) * 2 <= nearest->size()) {
    return message + "did you mean '" + *nearest + "'?";
  }
  message += "known:";
  for (const std::string& name : known) message += " " + name;
  return message;
}

}  // namespace convswap
