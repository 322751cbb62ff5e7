#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace convswap {

enum class DeviceKind { cpu, cuda };

std::string_view name_of(DeviceKind kind);

// Throws InvalidArgument for a word that is neither "cpu" nor "cuda".
DeviceKind parse_device(std::string_view word);

// Where a session's kernels come from, beside the store and the compiler (cuda/runtime/kernel_origin.h).
struct KernelOrigin;

// What a planner has to know of a device. The CUDA fields are read from the driver once per device.
struct Device {
  DeviceKind kind = DeviceKind::cpu;
  int index = 0;
  std::string name;
  int compute_capability = 0;  // 90 for compute capability 9.0
  int multiprocessors = 0;
  int shared_memory_per_block = 0;  // bytes a block may ask for, opted in
  int shared_memory_per_multiprocessor = 0;
  int second_level_cache = 0;             // bytes
  const KernelOrigin* kernels = nullptr;  // which lives as long as the process; null: nothing is said
  bool is_here = true;                    // and not only planned for
  bool lends_scratch = true;              // memory for a run: ONNX Runtime does from 1.18 on
};

const Device& cpu_device();

// The CUDA device `index` of this process. Throws std::runtime_error where there is none.
// With `kernels` it is said to take its kernels from there.
const Device& cuda_device(int index, const KernelOrigin* kernels = nullptr, bool lends_scratch = true);

// A card of that compute capability (90 for 9.0) as it is usually sold, for planning without one.
Device typical_cuda_device(int compute_capability);

// How many CUDA devices this process sees; 0 without a driver.
int cuda_device_count();

}  // namespace convswap
