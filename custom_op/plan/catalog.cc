#include "plan/catalog.h"

#include "plan/epilogue_stage.h"

namespace convswap {

#define CONVSWAP_CPU(name) const Algorithm& cpu_##name();
#define CONVSWAP_GPU(name) const Algorithm& cuda_##name();
#include "plan/catalog.def"
#undef CONVSWAP_CPU
#undef CONVSWAP_GPU
// The user's own kernel, which a session brings along: found by its name, and in no list.
const Algorithm& cuda_lab();

const std::vector<const Algorithm*>& catalog() {
  static const std::vector<const Algorithm*> algorithms = {
#define CONVSWAP_CPU(name) &cpu_##name(),
#define CONVSWAP_GPU(name) &cuda_##name(),
#include "plan/catalog.def"
#undef CONVSWAP_CPU
#undef CONVSWAP_GPU
  };
  return algorithms;
}

const EpilogueStage& cuda_epilogue_stage();

const EpilogueStage* epilogue_stage(DeviceKind kind) {
  return kind == DeviceKind::cuda ? &cuda_epilogue_stage() : nullptr;
}

const Algorithm* find_algorithm(std::string_view name, DeviceKind kind) {
  for (const Algorithm* algorithm : catalog()) {
    if (algorithm->device_kind() == kind && algorithm->name() == name) return algorithm;
  }
  if (kind == DeviceKind::cuda && name == cuda_lab().name()) return &cuda_lab();
  return nullptr;
}

std::vector<std::string> algorithm_names(DeviceKind kind, bool rungs) {
  std::vector<std::string> names;
  for (const Algorithm* algorithm : catalog()) {
    if (algorithm->device_kind() == kind && algorithm->is_rung() == rungs) {
      names.emplace_back(algorithm->name());
    }
  }
  return names;
}

}  // namespace convswap
