#include "cuda/host/constant_bank.h"

#include <cuda_runtime_api.h>

#include <map>
#include <mutex>
#include <stdexcept>
#include <utility>

#include "cuda/host/check.h"

namespace convswap {
namespace {

void check_not_captured(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  CONVSWAP_CHECK_CUDA(cudaStreamIsCapturing(stream, &status));
  if (status == cudaStreamCaptureStatusNone) return;
  throw std::runtime_error(
      "this algorithm keeps its filters in constant memory, of which a card has one for all sessions, and a "
      "CUDA graph would be replayed without asking who uses it: run without enable_cuda_graph, or take "
      "another algorithm");
}

// Passed on the stream of the last user once its kernels are done.
cudaEvent_t event_of_current_device(const void* symbol) {
  static std::map<std::pair<int, const void*>, cudaEvent_t> events;
  int device = 0;
  CONVSWAP_CHECK_CUDA(cudaGetDevice(&device));
  cudaEvent_t& event = events[{device, symbol}];
  if (event == nullptr) CONVSWAP_CHECK_CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  return event;
}

}  // namespace

void with_constants(const void* symbol, const void* source, std::size_t bytes, void* stream,
                    const std::function<void()>& launch) {
  const auto own = static_cast<cudaStream_t>(stream);
  check_not_captured(own);
  static std::mutex mutex;
  const std::lock_guard<std::mutex> lock(mutex);
  const cudaEvent_t last = event_of_current_device(symbol);
  // An event that was never recorded is no reason to wait.
  CONVSWAP_CHECK_CUDA(cudaStreamWaitEvent(own, last, 0));
  CONVSWAP_CHECK_CUDA(cudaMemcpyToSymbolAsync(symbol, source, bytes, 0, cudaMemcpyDeviceToDevice, own));
  launch();
  CONVSWAP_CHECK_CUDA(cudaEventRecord(last, own));
}

}  // namespace convswap
