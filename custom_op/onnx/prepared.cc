#include "onnx/prepared.h"

#include <exception>

#include "cuda/host/launch.h"
#include "cuda/runtime/driver.h"

namespace convswap {
namespace {

bool is_captured(void* stream) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  const CUresult result = driver().cuStreamIsCapturing(static_cast<CUstream>(stream), &status);
  // The null stream while another, which waits for it, is captured.
  if (result == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT) return true;
  check_driver(result, "cuStreamIsCapturing");
  return status != CU_STREAM_CAPTURE_STATUS_NONE;
}

}  // namespace

const void* PreparedWeights::get(const Plan& plan, int device, const OrtKernelContext* context,
                                 const OrtValue* weights, const void* data, void* stream) {
  const PreparedForm form = plan.prepared_form();
  if (form.bytes == 0) return nullptr;
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = forms_.find(form.name);
  if (found != forms_.end()) return found->second == nullptr ? nullptr : found->second->pointer();
  const DeviceGuard guard(device);
  if (is_captured(stream)) return nullptr;
  const OutsideOfCaptures outside;
  std::unique_ptr<ArenaMemory> memory;
  try {
    memory = std::make_unique<ArenaMemory>(api_, context, weights);
    memory->allocate(form.bytes);
  } catch (const std::exception&) {
    // Each run prepares them then, out of memory that it borrows.
    forms_.emplace(form.name, nullptr);
    return nullptr;
  }
  plan.prepare(data, memory->pointer(), stream);
  // Other runs, on other streams, may take them as soon as the lock is free.
  CONVSWAP_CHECK_DRIVER(driver().cuStreamSynchronize(static_cast<CUstream>(stream)));
  return forms_.emplace(form.name, std::move(memory)).first->second->pointer();
}

}  // namespace convswap
