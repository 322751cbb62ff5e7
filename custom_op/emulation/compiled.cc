#include "compiled.h"

#include <map>
#include <stdexcept>

#include "cuda/host/kernels.h"
#include "plan/algorithm.h"

namespace convswap {
namespace {

std::map<std::string, const void*>& kernels_by_name() {
  static std::map<std::string, const void*> kernels;
  return kernels;
}

}  // namespace

CompiledKernels::CompiledKernels(const std::vector<CompiledKernel>& kernels) {
  for (const CompiledKernel& kernel : kernels) kernels_by_name().emplace(kernel.name, kernel.address);
}

bool has_kernels_of(const std::string& prefix) {
  const auto found = kernels_by_name().lower_bound(prefix);
  return found != kernels_by_name().end() && found->first.starts_with(prefix);
}

const std::string& name_of(const void* kernel) {
  for (const auto& [name, address] : kernels_by_name()) {
    if (address == kernel) return name;
  }
  throw std::logic_error("the emulation has no such kernel");
}

const void* find_kernel(const std::string& instance, const Device&, std::size_t) {
  family_of(instance);  // throws if no family lists the instance
  const auto found = kernels_by_name().find(instance);
  if (found == kernels_by_name().end()) throw std::logic_error("the emulation has no " + instance);
  return found->second;
}

std::string why_no_kernels(const Device&, const Offer&) { return {}; }

}  // namespace convswap
