#pragma once

// Kernels by name: "toeplitz::kernel<ScaledFloat16Pairs, 8, true>" is toeplitz's kernel with these template
// arguments. Each family lists its instances once, in its family.h. Plans, packs and tests take the instances
// from that list.

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "plan/device.h"

namespace convswap {

// `kernel`: the template's name with its namespace; `format`: of the data; `arguments`: the remaining
// template arguments.
std::string instance_name(std::string_view kernel, std::string_view format, std::string_view arguments = {});

// The instance names for each format and each instance of a family's list.
template <typename Formats, typename Instances>
std::vector<std::string> instance_names(std::string_view kernel, const Formats& formats,
                                        const Instances& instances) {
  std::vector<std::string> names;
  for (const std::string_view format : formats) {
    for (const auto& instance : instances)
      names.push_back(instance_name(kernel, format, instance.arguments()));
  }
  return names;
}

// The instance names of a kernel without further template arguments.
template <typename Formats>
std::vector<std::string> instance_names(std::string_view kernel, const Formats& formats) {
  std::vector<std::string> names;
  for (const std::string_view format : formats) names.push_back(instance_name(kernel, format));
  return names;
}

// A family's kernel instances, their source, and the compute capabilities that they are compiled for.
struct KernelFamily {
  std::string header;                  // "cuda/toeplitz/kernel.cuh"
  std::vector<std::string> instances;  // their names
  int min_capability = 75;             // oldest compute capability; 75 for 7.5
  bool is_arch_specific = false;       // only for min_capability (as sm_90a), not for newer ones
  std::string variable = {};           // constant memory that the host fills: "ladder::filters_of_layer"
};

// Registers a family: an object with static storage duration in the file of the family's plan.
class KernelRegistration {
 public:
  explicit KernelRegistration(KernelFamily family);
};

// All families, sorted by header.
std::vector<const KernelFamily*> kernel_families();

// The family that lists the instance. Throws std::logic_error if none does: a plan and its family's list
// disagree.
const KernelFamily& family_of(const std::string& instance);

// The kernel as a CUfunction of the device; compiles and loads it if necessary. `argument_bytes`: the host's
// size of the kernel's only parameter. Throws std::runtime_error if the kernel can be neither found nor
// compiled.
const void* find_kernel(const std::string& instance, const Device& device, std::size_t argument_bytes);

// Device address of the kernel family's variable; each instance has its own copy.
void* find_variable(const std::string& instance, const Device& device);

}  // namespace convswap
