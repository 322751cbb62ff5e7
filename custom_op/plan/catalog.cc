#include "plan/catalog.h"

#include "plan/epilogue_stage.h"
#include "plan/layout_stage.h"
#include "plan/op_stage.h"

namespace convswap {

#define CONVSWAP_CPU(name) const Algorithm& cpu_##name();
#define CONVSWAP_GPU(name) const Algorithm& cuda_##name();
#include "plan/catalog.def"
#undef CONVSWAP_CPU
#undef CONVSWAP_GPU

namespace {

const std::vector<const Algorithm*>& all_algorithms() {
  static const std::vector<const Algorithm*> algorithms = {
#define CONVSWAP_CPU(name) &cpu_##name(),
#define CONVSWAP_GPU(name) &cuda_##name(),
#include "plan/catalog.def"
#undef CONVSWAP_CPU
#undef CONVSWAP_GPU
  };
  return algorithms;
}

}  // namespace

const std::vector<const Algorithm*>& catalog() {
  static const std::vector<const Algorithm*> algorithms = [] {
    std::vector<const Algorithm*> without_file;
    for (const Algorithm* algorithm : all_algorithms()) {
      if (algorithm->session_file() == nullptr) without_file.push_back(algorithm);
    }
    return without_file;
  }();
  return algorithms;
}

std::vector<const SessionFile*> session_files() {
  std::vector<const SessionFile*> files;
  for (const Algorithm* algorithm : all_algorithms()) {
    if (const SessionFile* const file = algorithm->session_file()) files.push_back(file);
  }
  return files;
}

const EpilogueStage& cuda_epilogue_stage();
const EpilogueStage& cuda_code_pool_stage();

const EpilogueStage* epilogue_stage(DeviceKind kind) {
  return kind == DeviceKind::cuda ? &cuda_epilogue_stage() : nullptr;
}

const EpilogueStage* code_pool_stage(DeviceKind kind) {
  return kind == DeviceKind::cuda ? &cuda_code_pool_stage() : nullptr;
}

const LayoutStage& cpu_layout_stage();
const LayoutStage& cuda_layout_stage();

const LayoutStage& layout_stage(DeviceKind kind) {
  return kind == DeviceKind::cuda ? cuda_layout_stage() : cpu_layout_stage();
}

const PoolStage& cpu_pool_stage();
const PoolStage& cuda_pool_stage();

const PoolStage& pool_stage(DeviceKind kind) {
  return kind == DeviceKind::cuda ? cuda_pool_stage() : cpu_pool_stage();
}

const LayerNormStage& cpu_layer_norm_stage();
const LayerNormStage& cuda_layer_norm_stage();

const LayerNormStage& layer_norm_stage(DeviceKind kind) {
  return kind == DeviceKind::cuda ? cuda_layer_norm_stage() : cpu_layer_norm_stage();
}

const MulStage& cpu_mul_stage();
const MulStage& cuda_mul_stage();

const MulStage& mul_stage(DeviceKind kind) {
  return kind == DeviceKind::cuda ? cuda_mul_stage() : cpu_mul_stage();
}

const Algorithm* find_algorithm(std::string_view name, DeviceKind kind) {
  for (const Algorithm* algorithm : all_algorithms()) {
    if (algorithm->device_kind() == kind && algorithm->name() == name) return algorithm;
  }
  return nullptr;
}

}  // namespace convswap
