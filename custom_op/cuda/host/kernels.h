#pragma once

// Kernels by name: "toeplitz::kernel<ScaledFloat16Pairs, 8, true>" is the kernel of toeplitz with these
// arguments of its template. A family lists its instances once (its family.h); what its plans ask for,
// what is made ahead of time and what tests compile comes from that list.

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "plan/device.h"

namespace convswap {

// `kernel`: with its namespace; `format`: of the data; `arguments`: what else its template takes.
std::string instance_name(std::string_view kernel, std::string_view format, std::string_view arguments = {});

// The same for each of the formats, and of the instances of a family's list.
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

// The same of a kernel whose template takes nothing else.
template <typename Formats>
std::vector<std::string> instance_names(std::string_view kernel, const Formats& formats) {
  std::vector<std::string> names;
  for (const std::string_view format : formats) names.push_back(instance_name(kernel, format));
  return names;
}

// A kernel's instances, all that there may be, where its source is, and what cards it has code for.
struct KernelFamily {
  std::string header;                  // "cuda/toeplitz/kernel.cuh"
  std::vector<std::string> instances;  // their names
  int least_capability = 75;           // compute capability 7.5
  bool is_for_it_alone = false;        // not for newer ones too
  std::string variable = {};           // in constant memory, that the host fills: "ladder::filters_of_layer"

  bool has_code_for(int compute_capability) const {
    return is_for_it_alone ? compute_capability == least_capability : compute_capability >= least_capability;
  }
};

// Makes a family known: an object of static life in the file that plans it.
class KnownKernels {
 public:
  explicit KnownKernels(KernelFamily family);
};

// All families, in the order of their headers.
std::vector<const KernelFamily*> kernel_families();

// The family that has the instance. Throws std::logic_error where none has: what is listed and what is
// planned disagree.
const KernelFamily& family_of(const std::string& instance);

// The kernel of that name on the device, a CUfunction, compiled and loaded if need be. `argument_bytes`: what
// the host takes its only parameter to be. Throws std::runtime_error where it cannot be had.
const void* find_kernel(const std::string& instance, const Device& device, std::size_t argument_bytes);

// The variable of a kernel's family, which belongs to this instance alone, in the memory of the device.
void* find_variable(const std::string& instance, const Device& device);

}  // namespace convswap
