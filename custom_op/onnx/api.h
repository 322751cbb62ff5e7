#pragma once

// A thin face on the C API of ONNX Runtime: every status becomes an exception, every handle has an owner.
// Only the C header is used, and only what API version 17 has, so that one build runs with ONNX Runtime 1.17
// and every newer one, whichever headers it was built with.

#include <onnxruntime_c_api.h>

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>

#include "conv/spec.h"

namespace convswap {

inline constexpr uint32_t kApiVersion = 17;

// A call to ONNX Runtime that failed, with its own code and message.
class OnnxRuntimeError : public std::runtime_error {
 public:
  OnnxRuntimeError(OrtErrorCode code, const std::string& message)
      : std::runtime_error(message), code_(code) {}
  OrtErrorCode code() const { return code_; }

 private:
  OrtErrorCode code_;
};

// Throws OnnxRuntimeError where `status` is an error; releases it either way.
void check(const OrtApi& api, OrtStatus* status);

// The status for the exception being handled; call it only inside a catch block. `context` begins the
// message: "convswap.Conv node 'conv1'".
OrtStatus* status_of_current_exception(const OrtApi& api, const std::string& context) noexcept;

struct ReleaseShapeInfo {
  const OrtApi* api;
  void operator()(OrtTensorTypeAndShapeInfo* info) const { api->ReleaseTensorTypeAndShapeInfo(info); }
};
using ShapeInfo = std::unique_ptr<OrtTensorTypeAndShapeInfo, ReleaseShapeInfo>;

struct ReleaseTypeInfo {
  const OrtApi* api;
  void operator()(OrtTypeInfo* info) const { api->ReleaseTypeInfo(info); }
};
using TypeInfo = std::unique_ptr<OrtTypeInfo, ReleaseTypeInfo>;

// Unknown dimensions are -1.
Shape shape_of(const OrtApi& api, const OrtTensorTypeAndShapeInfo* info);
Shape shape_of(const OrtApi& api, const OrtValue* tensor);

// The constant that an input of a node is; null where it is none.
const OrtValue* constant_input(const OrtApi& api, const OrtKernelInfo* info, size_t index);

}  // namespace convswap
