#include "cuda/tutorial/ladder/constant_bank.h"

#include <map>
#include <mutex>
#include <stdexcept>

#include "cuda/runtime/driver.h"

namespace convswap {
namespace {

void check_not_captured(CUstream stream) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  CONVSWAP_CHECK_DRIVER(driver().cuStreamIsCapturing(stream, &status));
  if (status == CU_STREAM_CAPTURE_STATUS_NONE) return;
  throw std::runtime_error(
      "this algorithm keeps its filters in constant memory, which all sessions of a card share, and a "
      "replayed "
      "CUDA graph would not wait for their kernels: run without enable_cuda_graph, or take another "
      "algorithm");
}

// The event that completes when the kernels of the last call are done.
CUevent event_of(const void* constants) {
  static auto& events = *new std::map<const void*, CUevent>;
  CUevent& event = events[constants];
  if (event == nullptr) CONVSWAP_CHECK_DRIVER(driver().cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  return event;
}

}  // namespace

void with_constants(void* constants, const void* source, std::size_t bytes, void* stream,
                    const std::function<void()>& launch) {
  const auto cuda_stream = static_cast<CUstream>(stream);
  check_not_captured(cuda_stream);
  static std::mutex mutex;
  const std::lock_guard<std::mutex> lock(mutex);
  const CUevent last = event_of(constants);
  // cuStreamWaitEvent does not wait for an event that was never recorded.
  CONVSWAP_CHECK_DRIVER(driver().cuStreamWaitEvent(cuda_stream, last, 0));
  CONVSWAP_CHECK_DRIVER(driver().cuMemcpyDtoDAsync(
      reinterpret_cast<CUdeviceptr>(constants), reinterpret_cast<CUdeviceptr>(source), bytes, cuda_stream));
  launch();
  CONVSWAP_CHECK_DRIVER(driver().cuEventRecord(last, cuda_stream));
}

}  // namespace convswap
