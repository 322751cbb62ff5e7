#include "onnx/optimizers.h"

#include <sstream>

#include "onnx/entries.h"

namespace convswap {
namespace {

constexpr char kDisabledEntry[] = "optimization.disable_specified_optimizers";

bool contains(const std::string& list, const std::string& name) {
  std::istringstream names(list);
  for (std::string each; std::getline(names, each, ';');) {
    if (each == name) return true;
  }
  return false;
}

}  // namespace

void disable_optimizers(const OrtApi& api, OrtSessionOptions* options,
                        std::initializer_list<const char*> names) {
  const std::string given = entry(api, options, kDisabledEntry).value_or("");
  std::string disabled = given;
  for (const char* name : names) {
    if (!contains(disabled, name)) disabled += (disabled.empty() ? "" : ";") + std::string(name);
  }
  if (disabled != given) check(api, api.AddSessionConfigEntry(options, kDisabledEntry, disabled.c_str()));
}

}  // namespace convswap
