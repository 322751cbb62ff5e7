#pragma once

// A thin wrapper of ONNX Runtime's C API: every status becomes an exception, every handle has an owner. It
// uses only the C header and only functions of API version 17. One build therefore runs with ONNX Runtime
// 1.17 and every newer one, whichever headers it was built with.

#include <onnxruntime_c_api.h>

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>

#include "conv/spec.h"

namespace convswap {

inline constexpr uint32_t kApiVersion = 17;

// A failed call to ONNX Runtime, with its code and message.
class OnnxRuntimeError : public std::runtime_error {
 public:
  OnnxRuntimeError(OrtErrorCode code, const std::string& message)
      : std::runtime_error(message), code_(code) {}
  OrtErrorCode code() const { return code_; }

 private:
  OrtErrorCode code_;
};

// True for ONNX Runtime 1.`minor` and newer. Not by GetApi(): for an unknown version it writes an error to
// the log.
bool is_at_least(const OrtApiBase& base, uint32_t minor);

// Throws OnnxRuntimeError if `status` is an error; releases it in either case.
void check(const OrtApi& api, OrtStatus* status);

// Makes the status for the exception being handled; call it only inside a catch block. `context` begins the
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

// Both return -1 for an unknown dimension.
Shape shape_of(const OrtApi& api, const OrtTensorTypeAndShapeInfo* info);
Shape shape_of(const OrtApi& api, const OrtValue* tensor);

// Returns a node's constant input; null if the input is not constant.
const OrtValue* constant_input(const OrtApi& api, const OrtKernelInfo* info, size_t index);

}  // namespace convswap
