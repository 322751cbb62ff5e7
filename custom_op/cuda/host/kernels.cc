#include "cuda/host/kernels.h"

#include <map>
#include <stdexcept>
#include <utility>

namespace convswap {
namespace {

// Filled before main, or while the library is loaded, and read-only afterwards; never destroyed.
std::map<std::string, KernelFamily>& families_by_header() {
  static auto& families = *new std::map<std::string, KernelFamily>;
  return families;
}

std::map<std::string, const KernelFamily*>& families_by_instance() {
  static auto& families = *new std::map<std::string, const KernelFamily*>;
  return families;
}

}  // namespace

std::string instance_name(std::string_view kernel, std::string_view format, std::string_view arguments) {
  std::string name(kernel);
  name.append("<").append(format);
  if (!arguments.empty()) name.append(", ").append(arguments);
  return name.append(">");
}

KernelRegistration::KernelRegistration(KernelFamily family) {
  std::string header = family.header;
  const auto at = families_by_header().insert_or_assign(std::move(header), std::move(family)).first;
  for (const std::string& instance : at->second.instances) families_by_instance()[instance] = &at->second;
}

std::vector<const KernelFamily*> kernel_families() {
  std::vector<const KernelFamily*> families;
  for (const auto& [header, family] : families_by_header()) families.push_back(&family);
  return families;
}

const KernelFamily& family_of(const std::string& instance) {
  const auto found = families_by_instance().find(instance);
  if (found == families_by_instance().end()) throw std::logic_error("no family of kernels lists " + instance);
  return *found->second;
}

}  // namespace convswap
