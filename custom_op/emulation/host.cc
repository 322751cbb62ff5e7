// The host's calls to the card and its driver, answered by the emulation. Launches run the kernels of
// KERNEL_FAMILY, of the epilogue stage and of pools at once.

#include "host.h"

#include "compiled.h"
#include "cuda/epilogue/arguments.h"
#include "cuda/host/tensor_map.h"
#include "cuda/pool/arguments.h"
#include "cuda_emulation.h"
#include "emulated_tensor_map.h"
#include "plan/epilogue_stage.h"
//
#include ARGUMENTS

namespace convswap {

// The shared memory that the family's kernels declare as extern, of each block of a cluster.
namespace KERNEL_FAMILY {
alignas(1024)
    SHARED_ELEMENT shared[emulation::kMaxClusterBlocks * emulation::kSharedBytes / sizeof(SHARED_ELEMENT)];
}

const EpilogueStage& cuda_epilogue_stage();
const EpilogueStage& cuda_code_pool_stage();
const EpilogueStage* epilogue_stage(DeviceKind) { return &cuda_epilogue_stage(); }
const EpilogueStage* code_pool_stage(DeviceKind) { return &cuda_code_pool_stage(); }

TensorMap make_tensor_map(const TensorBox& tensor, ElementType type, const void* data) {
  EmulatedTensorMap emulated{};
  emulated.base = static_cast<const char*>(data);
  emulated.element_bytes = static_cast<int>(bytes_per_element(type));
  emulated.rounds_to_tf32 = tensor.rounds_to_tf32;
  emulated.has_short_rows = tensor.has_short_rows(type);
  int64_t stride = emulated.element_bytes;
  for (int axis = 0; axis < 5; ++axis) {
    emulated.strides[axis] = stride;
    stride *= tensor.extents[axis];
    emulated.extents[axis] = static_cast<int>(tensor.extents[axis]);
    emulated.box[axis] = static_cast<short>(tensor.box[axis]);
    emulated.steps[axis] = static_cast<short>(tensor.steps[axis]);
  }
  TensorMap map{};
  std::memcpy(&map, &emulated, sizeof emulated);
  return map;
}

void enqueue(const Launch& launch, void*, void** arguments) {
  if (name_of(launch.kernel).starts_with("epilogue::")) {
    run_kernel<epilogue::Arguments<float>>(launch, arguments, KERNEL_FAMILY::shared);
  } else if (name_of(launch.kernel).starts_with("pool::")) {
    run_kernel<pool::Arguments<float>>(launch, arguments, KERNEL_FAMILY::shared);
  } else {
    run_kernel<KERNEL_FAMILY::Arguments<float>>(launch, arguments, KERNEL_FAMILY::shared);
  }
}

}  // namespace convswap
