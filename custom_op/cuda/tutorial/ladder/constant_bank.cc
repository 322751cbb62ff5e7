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
      "this algorithm keeps its filters in constant memory, of which a card has one for all sessions, and a "
      "CUDA graph would be replayed without asking who uses it: run without enable_cuda_graph, or take "
      "another algorithm");
}

// Passed on the stream of the last user once its kernels are done.
CUevent event_of(const void* constants) {
  static auto& events = *new std::map<const void*, CUevent>;
  CUevent& event = events[constants];
  if (event == nullptr) CONVSWAP_CHECK_DRIVER(driver().cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  return event;
}

}  // namespace

void with_constants(void* constants, const void* source, std::size_t bytes, void* stream,
                    const std::function<void()>& launch) {
  const auto own = static_cast<CUstream>(stream);
  check_not_captured(own);
  static std::mutex mutex;
  const std::lock_guard<std::mutex> lock(mutex);
  const CUevent last = event_of(constants);
  // An event that was never recorded is no reason to wait.
  CONVSWAP_CHECK_DRIVER(driver().cuStreamWaitEvent(own, last, 0));
  CONVSWAP_CHECK_DRIVER(driver().cuMemcpyDtoDAsync(reinterpret_cast<CUdeviceptr>(constants),
                                                   reinterpret_cast<CUdeviceptr>(source), bytes, own));
  launch();
  CONVSWAP_CHECK_DRIVER(driver().cuEventRecord(last, own));
}

}  // namespace convswap
