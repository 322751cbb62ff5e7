#pragma once

// The kernel instances that a build has, by name: "toeplitz::kernel<ScaledFloat16Pairs, 8, true>" is the
// kernel of toeplitz with these arguments of its template. A family lists its instances once (its
// instances.h); what is compiled, and what its plans ask for, come from that list.

#include <cstddef>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace convswap {

// `kernel`: with its namespace; `format`: of the data; `arguments`: what else its template takes.
std::string instance_name(std::string_view kernel, std::string_view format, std::string_view arguments = {});

// The kernel of that name. Throws std::logic_error where this build has none: what is compiled and what is
// planned disagree.
const void* find_kernel(const std::string& name);

// Whether this build has any whose name begins so.
bool has_kernels(std::string_view beginning);

// The names of all, in alphabetical order.
std::vector<std::string> compiled_kernels();

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
