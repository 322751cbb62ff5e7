#pragma once

// The kernels that a program of the emulation has, as functions of the processor, by the names that the host
// asks for.

#include <cstddef>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

namespace convswap {

struct CompiledKernel {
  std::string name;
  const void* address;

  template <typename Arguments>
  CompiledKernel(std::string own_name, void (*kernel)(Arguments))
      : name(std::move(own_name)), address(reinterpret_cast<const void*>(kernel)) {}
};

// Makes kernels known: an object of static life in the file that has their code.
class CompiledKernels {
 public:
  explicit CompiledKernels(const std::vector<CompiledKernel>& kernels);
};

// Whether there are any whose name begins so.
bool has_kernels_of(const std::string& beginning);

// The name of a kernel that is known.
const std::string& name_of(const void* kernel);

// What `of` gives for elements of a family's list, which it takes as an argument of its template: for every
// kParts-th from the one of number kPart on, so that a list can be compiled in so many files side by side.
template <const auto& kInstances, std::size_t kPart, std::size_t kParts, typename Of>
auto for_each_instance(Of of) {
  constexpr std::size_t kCount = (std::size(kInstances) - kPart + kParts - 1) / kParts;
  return [&]<std::size_t... kIndex>(std::index_sequence<kIndex...>) {
    return std::vector{of.template operator()<kInstances[kIndex * kParts + kPart]>()...};
  }(std::make_index_sequence<kCount>());
}

}  // namespace convswap
