#include "plan/device.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>

#include "cuda/costs/cost_table.h"
#include "cuda/runtime/driver.h"
#include "plan/user_cache.h"

namespace convswap {
namespace {

constexpr int kOldestCapability = 75;

int card_attribute(CUdevice_attribute attribute, CUdevice card) {
  int value = 0;
  CONVSWAP_CHECK_DRIVER(driver().cuDeviceGetAttribute(&value, attribute, card));
  return value;
}

// 0 if the driver does not report the attribute.
int optional_attribute(CUdevice_attribute attribute, CUdevice card) {
  int value = 0;
  const bool is_known = driver().cuDeviceGetAttribute(&value, attribute, card) == CUDA_SUCCESS;
  return is_known ? std::max(0, value) : 0;
}

// Restricts the device to CONVSWAP_COMPUTE_CAPABILITY if that is not newer. Cards of that capability count as
// restricted too, since all cards of one capability share loaded kernels.
void restrict_capability(Device& device) {
  const std::string text = environment("CONVSWAP_COMPUTE_CAPABILITY");
  if (text.empty()) return;
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  if (text.size() < 3 || text[text.size() - 2] != '.' || !is_digit(text.back()) ||
      !std::all_of(text.begin(), text.end() - 2, is_digit) || text.size() > 4) {
    throw std::runtime_error("CONVSWAP_COMPUTE_CAPABILITY is '" + text +
                             "': expected a compute capability, such as 8.0");
  }
  const int capability = std::stoi(text) * 10 + (text.back() - '0');
  if (capability < kOldestCapability) {
    throw std::runtime_error("CONVSWAP_COMPUTE_CAPABILITY is '" + text + "': expected 7.5 or newer");
  }
  if (capability > device.compute_capability) return;
  const Device older = typical_cuda_device(capability);
  device.compute_capability = capability;
  device.shared_memory_per_block = std::min(device.shared_memory_per_block, older.shared_memory_per_block);
  device.shared_memory_per_multiprocessor =
      std::min(device.shared_memory_per_multiprocessor, older.shared_memory_per_multiprocessor);
  device.is_restricted = true;
}

Device read_device(int index) {
  CUdevice card = 0;
  CONVSWAP_CHECK_DRIVER(driver().cuDeviceGet(&card, index));
  Device device;
  device.kind = DeviceKind::cuda;
  device.index = index;
  char name[256] = {};
  CONVSWAP_CHECK_DRIVER(driver().cuDeviceGetName(name, sizeof name, card));
  device.name = name;
  device.compute_capability = card_attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, card) * 10 +
                              card_attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, card);
  device.multiprocessors = card_attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, card);
  device.shared_memory_per_block =
      card_attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, card);
  device.shared_memory_per_multiprocessor =
      card_attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, card);
  device.l2_cache_bytes = card_attribute(CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, card);
  const double kilohertz = optional_attribute(CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, card);
  const double bits = optional_attribute(CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, card);
  device.memory_bandwidth = 2e3 * kilohertz * bits / 8;
  device.clock = 1e3 * optional_attribute(CU_DEVICE_ATTRIBUTE_CLOCK_RATE, card);
  restrict_capability(device);
  device.costs = cost_table_of(device);
  return device;
}

}  // namespace

Device typical_cuda_device(int compute_capability) {
  // T4, A100, GeForce RTX 3090 and 4090, H200, B200 and GeForce RTX 5090, from NVIDIA's descriptions of the
  // architectures. Each stands for the generations up to the next.
  struct Card {
    int compute_capability, multiprocessors, cache_megabytes, megahertz, gigabytes_per_second;
  };
  constexpr Card kCards[] = {{75, 40, 4, 1590, 320},    {80, 108, 40, 1410, 1555},
                             {86, 82, 6, 1695, 936},    {89, 128, 72, 2520, 1008},
                             {90, 132, 50, 1980, 4814}, {100, 148, 126, 1965, 8000},
                             {120, 170, 96, 2407, 1792}};
  const Card* card = kCards;
  for (const Card& candidate : kCards) {
    if (candidate.compute_capability <= compute_capability) card = &candidate;
  }
  // Shared memory: CUDA C++ Programming Guide, table of technical specifications.
  constexpr int kKilobyte = 1024;
  Device device{DeviceKind::cuda, 0, "a card of compute capability " + std::to_string(compute_capability)};
  device.is_present = false;
  device.compute_capability = compute_capability;
  device.multiprocessors = card->multiprocessors;
  device.l2_cache_bytes = card->cache_megabytes * kKilobyte * kKilobyte;
  device.clock = 1e6 * card->megahertz;
  device.memory_bandwidth = 1e9 * card->gigabytes_per_second;
  const bool has_large_shared_memory =
      compute_capability == 90 || compute_capability / 10 == 10 || compute_capability == 110;
  if (compute_capability < 80) {
    device.shared_memory_per_block = 64 * kKilobyte;
    device.shared_memory_per_multiprocessor = 64 * kKilobyte;
  } else if (compute_capability == 80 || compute_capability == 87) {
    device.shared_memory_per_block = 163 * kKilobyte;
    device.shared_memory_per_multiprocessor = 164 * kKilobyte;
  } else {
    device.shared_memory_per_block = (has_large_shared_memory ? 227 : 99) * kKilobyte;
    device.shared_memory_per_multiprocessor = (has_large_shared_memory ? 228 : 100) * kKilobyte;
  }
  device.costs = cost_table_of(device);
  return device;
}

int cuda_device_count() {
  int count = 0;
  const Driver* const driver = find_driver();
  return driver != nullptr && driver->cuDeviceGetCount(&count) == CUDA_SUCCESS ? count : 0;
}

const Device& cuda_device(int index, const KernelOrigin* kernels, bool lends_scratch) {
  const auto check_index = [&] {
    const int count = cuda_device_count();
    if (index >= 0 && index < count) return;
    throw std::runtime_error("CUDA device " + std::to_string(index) + " does not exist: this process sees " +
                             std::to_string(count));
  };
  // Checked before the lock: a forked process may inherit the mutex locked by a thread of its parent.
  std::string why;
  if (find_driver(&why) == nullptr) {
    throw std::runtime_error("CUDA device " + std::to_string(index) + " is not available: " + why);
  }
  // Devices are read one at a time and on demand, so that an unreadable card does not affect the others.
  static std::mutex mutex;
  static auto& devices = *new std::map<std::tuple<int, const KernelOrigin*, bool>, Device>;
  const std::lock_guard<std::mutex> lock(mutex);
  if (const auto found = devices.find({index, kernels, lends_scratch}); found != devices.end())
    return found->second;
  check_index();
  Device device = read_device(index);
  device.kernels = kernels;
  device.lends_scratch = lends_scratch;
  return devices.emplace(std::tuple{index, kernels, lends_scratch}, std::move(device)).first->second;
}

}  // namespace convswap
