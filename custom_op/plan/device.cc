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

}  // namespace convswap
