#include "onnx/api.h"

#include <cstdio>
#include <new>

#include "conv/error.h"

namespace convswap {
namespace {

OrtStatus* make_status(const OrtApi& api, OrtErrorCode code, const std::string& context,
                       const char* message) noexcept {
  try {
    return api.CreateStatus(code, (context + ": " + message).c_str());
  } catch (...) {
    return api.CreateStatus(code, "out of memory while an error was reported");
  }
}

}  // namespace

bool is_at_least(const OrtApiBase& base, uint32_t minor) {
  unsigned major = 0, its_minor = 0;
  if (std::sscanf(base.GetVersionString(), "%u.%u", &major, &its_minor) != 2) return false;
  return major > 1 || its_minor >= minor;
}

void check(const OrtApi& api, OrtStatus* status) {
  if (status == nullptr) return;
  const OnnxRuntimeError error(api.GetErrorCode(status), api.GetErrorMessage(status));
  api.ReleaseStatus(status);
  throw error;
}

OrtStatus* status_of_current_exception(const OrtApi& api, const std::string& context) noexcept {
  try {
    throw;
  } catch (const InvalidArgument& error) {
    return make_status(api, ORT_INVALID_ARGUMENT, context, error.what());
  } catch (const OnnxRuntimeError& error) {
    return make_status(api, error.code(), context, error.what());
  } catch (const std::bad_alloc&) {
    return make_status(api, ORT_FAIL, context, "out of host memory");
  } catch (const std::exception& error) {
    return make_status(api, ORT_FAIL, context, error.what());
  } catch (...) {
    return make_status(api, ORT_FAIL, context, "unknown error");
  }
}

Shape shape_of(const OrtApi& api, const OrtTensorTypeAndShapeInfo* info) {
  size_t rank = 0;
  check(api, api.GetDimensionsCount(info, &rank));
  Shape shape(rank);
  check(api, api.GetDimensions(info, shape.data(), rank));
  return shape;
}

Shape shape_of(const OrtApi& api, const OrtValue* tensor) {
  OrtTensorTypeAndShapeInfo* info = nullptr;
  check(api, api.GetTensorTypeAndShape(tensor, &info));
  const ShapeInfo owner(info, {&api});
  return shape_of(api, info);
}

const OrtValue* constant_input(const OrtApi& api, const OrtKernelInfo* info, size_t index) {
  int is_constant = 0;
  const OrtValue* constant = nullptr;
  check(api, api.KernelInfoGetConstantInput_tensor(info, index, &is_constant, &constant));
  return is_constant ? constant : nullptr;
}

}  // namespace convswap
