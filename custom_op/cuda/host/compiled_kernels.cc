#include "cuda/host/compiled_kernels.h"

#include <map>
#include <stdexcept>

namespace convswap {
namespace {

// Filled before main begins, or while the library is loaded, and only read from then on.
std::map<std::string, const void*>& kernels_by_name() {
  static std::map<std::string, const void*> kernels;
  return kernels;
}

}  // namespace

std::string instance_name(std::string_view kernel, std::string_view format, std::string_view arguments) {
  std::string name(kernel);
  name.append("<").append(format);
  if (!arguments.empty()) name.append(", ").append(arguments);
  return name.append(">");
}

const void* find_kernel(const std::string& name) {
  const auto found = kernels_by_name().find(name);
  if (found == kernels_by_name().end()) throw std::logic_error("this build has no kernel " + name);
  return found->second;
}

bool has_kernels(std::string_view beginning) {
  const auto found = kernels_by_name().lower_bound(std::string(beginning));
  return found != kernels_by_name().end() && found->first.starts_with(beginning);
}

std::vector<std::string> compiled_kernels() {
  std::vector<std::string> names;
  for (const auto& [name, address] : kernels_by_name()) names.push_back(name);
  return names;
}

CompiledKernels::CompiledKernels(const std::vector<CompiledKernel>& kernels) {
  for (const CompiledKernel& kernel : kernels) kernels_by_name().emplace(kernel.name, kernel.address);
}

}  // namespace convswap
