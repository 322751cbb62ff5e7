#include "plan/device.h"

#include <stdexcept>

#include "conv/error.h"
#include "conv/messages.h"

namespace convswap {

std::string_view name_of(DeviceKind kind) { return kind == DeviceKind::cpu ? "cpu" : "cuda"; }

DeviceKind parse_device(std::string_view word) {
  if (word == "cpu") return DeviceKind::cpu;
  if (word == "cuda") return DeviceKind::cuda;
  throw InvalidArgument(unknown_name_message("device", word, {"cpu", "cuda"}));
}

const Device& cpu_device() {
  static const Device device{DeviceKind::cpu, 0, "cpu"};
  return device;
}

Device typical_cuda_device(int compute_capability) {
  // Shared memory by the CUDA C++ Programming Guide's table of technical specifications.
  constexpr int kKilobyte = 1024;
  Device device{DeviceKind::cuda, 0, "a card of compute capability " + std::to_string(compute_capability)};
  device.compute_capability = compute_capability;
  device.multiprocessors = 108;
  const bool data_center = compute_capability == 80 || compute_capability == 90 || compute_capability == 100;
  if (compute_capability < 80) {
    device.shared_memory_per_block = 64 * kKilobyte;
    device.shared_memory_per_multiprocessor = 64 * kKilobyte;
  } else if (compute_capability == 80) {
    device.shared_memory_per_block = 163 * kKilobyte;
    device.shared_memory_per_multiprocessor = 164 * kKilobyte;
  } else {
    device.shared_memory_per_block = (data_center ? 227 : 99) * kKilobyte;
    device.shared_memory_per_multiprocessor = (data_center ? 228 : 100) * kKilobyte;
  }
  return device;
}

#if !CONVSWAP_CUDA
const Device& cuda_device(int) {
  throw std::runtime_error("this build of convswap has no CUDA kernels: build it where nvcc is installed");
}

int cuda_device_count() { return 0; }
#endif

}  // namespace convswap
