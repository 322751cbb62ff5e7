#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace convswap {

enum class DeviceKind { cpu, cuda };

std::string_view name_of(DeviceKind kind);

// Throws InvalidArgument for a word that is neither "cpu" nor "cuda".
DeviceKind parse_device(std::string_view word);

// The pack and files that a session names for its kernels (cuda/runtime/kernel_origin.h).
struct KernelOrigin;

// Coefficients of the cost formulas on a card (cuda/costs/cost_table.h).
struct CostTable;

// The properties of a device that planning needs. The CUDA fields are read from the driver once per device.
struct Device {
  DeviceKind kind = DeviceKind::cpu;
  int index = 0;
  std::string name;
  int compute_capability = 0;  // 90 for compute capability 9.0
  int multiprocessors = 0;
  int shared_memory_per_block = 0;  // bytes, the opt-in maximum
  int shared_memory_per_multiprocessor = 0;
  int l2_cache_bytes = 0;
  double memory_bandwidth = 0;  // bytes per second, two transfers per clock; 0 if unknown
  double clock = 0;             // of the multiprocessors at most, in Hz; 0 if unknown
  std::shared_ptr<const CostTable> costs = nullptr;  // for estimates
  const KernelOrigin* kernels = nullptr;  // lives as long as the process; null without session entries
  bool is_present = true;                 // false for a card that is only planned for
  bool is_restricted = false;             // used as a card of an older compute capability
  bool lends_scratch = true;              // false below ONNX Runtime 1.18, which lends no scratch memory
};

const Device& cpu_device();

// The CUDA device `index` of this process, with the given origin of its kernels. If the environment variable
// CONVSWAP_COMPUTE_CAPABILITY names an older compute capability ("8.0") than the device's, the device has
// that one, and the shared memory of such a card. Throws std::runtime_error if there is no such device or the
// variable names no compute capability.
const Device& cuda_device(int index, const KernelOrigin* kernels = nullptr, bool lends_scratch = true);

// A typical card of a compute capability (90 for 9.0), for planning without one.
Device typical_cuda_device(int compute_capability);

// The number of CUDA devices that this process sees; 0 without a driver.
int cuda_device_count();

}  // namespace convswap
