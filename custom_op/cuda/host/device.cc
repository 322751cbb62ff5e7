#include "plan/device.h"

#include <cuda_runtime_api.h>

#include <map>
#include <mutex>
#include <stdexcept>

#include "cuda/host/check.h"

namespace convswap {
namespace {

int attribute(cudaDeviceAttr which, int index) {
  int value = 0;
  CONVSWAP_CHECK_CUDA(cudaDeviceGetAttribute(&value, which, index));
  return value;
}

Device read_device(int index) {
  Device device;
  device.kind = DeviceKind::cuda;
  device.index = index;
  cudaDeviceProp properties{};
  CONVSWAP_CHECK_CUDA(cudaGetDeviceProperties(&properties, index));
  device.name = properties.name;
  device.compute_capability = attribute(cudaDevAttrComputeCapabilityMajor, index) * 10 +
                              attribute(cudaDevAttrComputeCapabilityMinor, index);
  device.multiprocessors = attribute(cudaDevAttrMultiProcessorCount, index);
  device.shared_memory_per_block = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, index);
  device.shared_memory_per_multiprocessor = attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor, index);
  device.second_level_cache = attribute(cudaDevAttrL2CacheSize, index);
  return device;
}

}  // namespace

int cuda_device_count() {
  int count = 0;
  // Without a driver or a card this fails, and the answer is that there is none.
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    cudaGetLastError();
    return 0;
  }
  return count;
}

const Device& cuda_device(int index) {
  // One at a time and only when asked for: a card that cannot be read must not spoil the others.
  static std::mutex mutex;
  static std::map<int, Device> devices;
  const std::lock_guard<std::mutex> lock(mutex);
  if (const auto found = devices.find(index); found != devices.end()) return found->second;
  const int count = cuda_device_count();
  if (index < 0 || index >= count) {
    throw std::runtime_error("CUDA device " + std::to_string(index) + " is not there: this process sees " +
                             std::to_string(count));
  }
  return devices.emplace(index, read_device(index)).first->second;
}

}  // namespace convswap
