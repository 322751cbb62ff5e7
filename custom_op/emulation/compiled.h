#pragma once

// Registry of the kernels compiled into an emulation program, as CPU functions, by the instance names that
// plans ask for.

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
  CompiledKernel(std::string instance, void (*kernel)(Arguments))
      : name(std::move(instance)), address(reinterpret_cast<const void*>(kernel)) {}
};

// Registers kernels: an object with static storage duration in the file that compiles them.
class CompiledKernels {
 public:
  explicit CompiledKernels(const std::vector<CompiledKernel>& kernels);
};

// True if the name of any registered kernel begins with `prefix`.
bool has_kernels_of(const std::string& prefix);

// The name of a registered kernel.
const std::string& name_of(const void* kernel);

// A vector of `make.operator()<instance>()` for every instance of a family's list.
template <const auto& kInstances, typename Make>
auto for_each_instance(Make make) {
  return [&]<std::size_t... kIndex>(std::index_sequence<kIndex...>) {
    return std::vector{make.template operator()<kInstances[kIndex]>()...};
  }(std::make_index_sequence<std::size(kInstances)>());
}

}  // namespace convswap
