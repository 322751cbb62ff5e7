#include "cuda/host/check.h"

#include <stdexcept>
#include <string>

namespace convswap {

void check_cuda(cudaError_t result, const char* expression) {
  if (result == cudaSuccess) return;
  std::string message = std::string(expression) + ": " + cudaGetErrorString(result);
  if (result == cudaErrorNoKernelImageForDevice) {
    message +=
        "; this library was built for other cards: build it with CONVSWAP_CUDA_ARCHITECTURES set to "
        "this card's compute capability";
  } else if (result == cudaErrorInsufficientDriver) {
    message += "; install a newer NVIDIA driver";
  }
  // A launch error stays behind as the thread's last error; the next launch must not be blamed for it.
  cudaGetLastError();
  throw std::runtime_error(message);
}

}  // namespace convswap
