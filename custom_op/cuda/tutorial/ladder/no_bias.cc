#include "cuda/tutorial/ladder/no_bias.h"

#include <map>
#include <mutex>

#include "cuda/runtime/driver.h"

namespace convswap::ladder {
namespace {

// Uses a separate stream: other streams of the context may be captured, and must not be synchronised then.
CUdeviceptr make_zeros() {
  constexpr std::size_t kBytes = sizeof(float) * kMaxFilters;
  const RelaxedCaptureMode relaxed;
  const Driver& cuda = driver();
  CUdeviceptr zeros = 0;
  CUstream stream = nullptr;
  CONVSWAP_CHECK_DRIVER(cuda.cuMemAlloc(&zeros, kBytes));
  CUresult result = cuda.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
  if (result == CUDA_SUCCESS) {
    result = cuda.cuMemsetD8Async(zeros, 0, kBytes, stream);
    if (result == CUDA_SUCCESS) result = cuda.cuStreamSynchronize(stream);
    cuda.cuStreamDestroy(stream);
  }
  if (result != CUDA_SUCCESS) cuda.cuMemFree(zeros);
  check_driver(result, "cuMemsetD8Async");
  return zeros;
}

}  // namespace

const float* no_bias(int device) {
  static std::mutex mutex;
  static auto& zeros = *new std::map<int, CUdeviceptr>;
  const std::lock_guard<std::mutex> lock(mutex);
  CUdeviceptr& device_zeros = zeros[device];
  if (device_zeros == 0) device_zeros = make_zeros();
  return reinterpret_cast<const float*>(device_zeros);
}

}  // namespace convswap::ladder
