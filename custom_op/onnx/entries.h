#pragma once

#include <optional>
#include <string>

#include "onnx/api.h"

namespace convswap {

// Whether the session options have a config entry of that key.
bool has_entry(const OrtApi& api, const OrtSessionOptions* options, const char* key);

// Its value; nothing where there is none.
std::optional<std::string> entry(const OrtApi& api, const OrtSessionOptions* options, const char* key);

// For an entry whose value is none of those expected.
OnnxRuntimeError unknown_value(const char* key, const std::string& given, const char* expected);

}  // namespace convswap
