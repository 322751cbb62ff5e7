#include "plan/device.h"

#include "conv/error.h"

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
  // T4, A100, GeForce RTX 3090 and 4090, H100, B200 and GeForce RTX 5090, from NVIDIA's descriptions of the
  // architectures. Each stands for the generations up to the next.
  struct Card {
    int compute_capability, multiprocessors, cache_megabytes;
  };
  constexpr Card kCards[] = {{75, 40, 4},   {80, 108, 40},   {86, 82, 6},   {89, 128, 72},
                             {90, 132, 50}, {100, 148, 126}, {120, 170, 96}};
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
  return device;
}

}  // namespace convswap
