#include "onnx/entries.h"

namespace convswap {

bool has_entry(const OrtApi& api, const OrtSessionOptions* options, const char* key) {
  int present = 0;
  check(api, api.HasSessionConfigEntry(options, key, &present));
  return present != 0;
}

std::optional<std::string> entry(const OrtApi& api, const OrtSessionOptions* options, const char* key) {
  if (!has_entry(api, options, key)) return std::nullopt;
  size_t size = 0;
  check(api, api.GetSessionConfigEntry(options, key, nullptr, &size));
  std::string value(size, '\0');
  check(api, api.GetSessionConfigEntry(options, key, value.data(), &size));
  return std::string(value.c_str());
}

OnnxRuntimeError unknown_value(const char* key, const std::string& given, const char* expected) {
  return {ORT_INVALID_ARGUMENT,
          "session config entry " + std::string(key) + " is '" + given + "'; expected " + expected};
}

}  // namespace convswap
