#include "onnx/scratch.h"

#include <cstddef>
#include <cstdio>
#include <cstring>
#include <string>

namespace convswap {
namespace {

constexpr uint32_t kScratchSince = 18;

using GetScratchBuffer = OrtStatus*(ORT_API_CALL*)(const OrtKernelContext*, const OrtMemoryInfo*, size_t,
                                                   void**);

// KernelContext_GetScratchBuffer, which headers of version 17 do not declare. The table of functions only
// ever grows at its end: version 18 put two behind the last of version 17, of which this is the second.
GetScratchBuffer scratch_function(const OrtApiBase& base) {
  const OrtApi* const api = base.GetApi(kScratchSince);
  if (api == nullptr) {
    throw OnnxRuntimeError(ORT_NOT_IMPLEMENTED,
                           "ONNX Runtime " + std::string(base.GetVersionString()) +
                               " lends no scratch memory: install onnxruntime-gpu 1.18 or newer");
  }
  constexpr size_t kLastOf17 = offsetof(OrtApi, SessionOptionsAppendExecutionProvider_OpenVINO_V2);
  constexpr size_t kPlace = kLastOf17 + 2 * sizeof(GetScratchBuffer);
#if ORT_API_VERSION >= 18
  static_assert(kPlace == offsetof(OrtApi, KernelContext_GetScratchBuffer));
#endif
  GetScratchBuffer function = nullptr;
  std::memcpy(&function, reinterpret_cast<const char*>(api) + kPlace, sizeof function);
  return function;
}

}  // namespace

bool lends_scratch(const OrtApiBase& base) {
  // GetApi of a version that is not there writes an error to the log.
  unsigned major = 0, minor = 0;
  if (std::sscanf(base.GetVersionString(), "%u.%u", &major, &minor) != 2) return false;
  return major > 1 || minor >= kScratchSince;
}

Scratch::Scratch(const OrtApiBase& base, const OrtApi& api, const OrtKernelContext* context,
                 const OrtValue* beside, size_t bytes, DeviceKind kind) {
  if (bytes == 0) return;
  if (kind == DeviceKind::cpu) {
    memory_.emplace(api, context, beside);
    memory_->allocate(bytes);
    return;
  }
  const GetScratchBuffer get_scratch_buffer = scratch_function(base);
  memory_.emplace(api, context, beside);
  void* pointer = nullptr;
  // ONNX Runtime throws where there is not enough: its exception, like a status, becomes the run's.
  check(api, get_scratch_buffer(context, memory_->info(), bytes, &pointer));
  memory_->adopt(pointer);
}

}  // namespace convswap
