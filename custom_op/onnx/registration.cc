// The one exported symbol: what ONNX Runtime calls when an application registers the library.

#include <string>

#include "onnx/op.h"

extern "C" __attribute__((visibility("default"))) OrtStatus* ORT_API_CALL
RegisterCustomOps(OrtSessionOptions* options, const OrtApiBase* base) {
  const OrtApi* api = base->GetApi(convswap::kApiVersion);
  if (api == nullptr) {
    // Every ONNX Runtime has version 1 of the API, which can make a status.
    const std::string message = "convswap needs ONNX Runtime 1." + std::to_string(convswap::kApiVersion) +
                                " or newer and this is " + base->GetVersionString() +
                                ": install a newer onnxruntime or onnxruntime-gpu";
    return base->GetApi(1)->CreateStatus(ORT_FAIL, message.c_str());
  }
  try {
    convswap::register_ops(*base, *api, options);
    return nullptr;
  } catch (...) {
    return convswap::status_of_current_exception(*api, "convswap");
  }
}
