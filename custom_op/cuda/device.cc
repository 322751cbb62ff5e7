#include "plan/device.h"

#include <cuda_runtime_api.h>

#include <stdexcept>
#include <vector>

#include "cuda/primitives/check.h"

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
  static const std::vector<Device> devices = [] {
    std::vector<Device> read;
    for (int i = 0; i < cuda_device_count(); ++i) read.push_back(read_device(i));
    return read;
  }();
  if (index < 0 || index >= static_cast<int>(devices.size())) {
    throw std::runtime_error("CUDA device " + std::to_string(index) + " is not there: this process sees " +
                             std::to_string(devices.size()));
  }
  return devices[index];
}

}  // namespace convswap
