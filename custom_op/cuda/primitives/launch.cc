#include "cuda/primitives/launch.h"

#include "cuda/primitives/check.h"

namespace convswap {

DeviceGuard::DeviceGuard(int device) {
  CONVSWAP_CHECK_CUDA(cudaGetDevice(&former_));
  if (former_ == device) return;
  CONVSWAP_CHECK_CUDA(cudaSetDevice(device));
  changed_ = true;
}

DeviceGuard::~DeviceGuard() {
  // It was current a moment ago, so this cannot fail in a way that a destructor could report.
  if (changed_) static_cast<void>(cudaSetDevice(former_));
}

void allow_shared_memory(const void* kernel, int bytes_per_block) {
  CONVSWAP_CHECK_CUDA(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes_per_block));
}

int resident_blocks(const void* kernel, int threads, size_t shared_bytes) {
  int blocks = 0;
  CONVSWAP_CHECK_CUDA(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, threads, shared_bytes));
  return blocks;
}

Start earliest_start(const void* kernel) {
  // What counts is the code: PTX for an older architecture runs on a newer card too, and does not wait.
  constexpr int kOldest = 90;
  cudaFuncAttributes attributes{};
  CONVSWAP_CHECK_CUDA(cudaFuncGetAttributes(&attributes, kernel));
  return attributes.ptxVersion >= kOldest ? Start::early : Start::in_turn;
}

void launch(const void* kernel, dim3 grid, dim3 block, size_t shared_bytes, void* stream, void** arguments,
            Start start) {
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = static_cast<cudaStream_t>(stream);
  config.attrs = &early;
  config.numAttrs = start == Start::early ? 1 : 0;
  CONVSWAP_CHECK_CUDA(cudaLaunchKernelExC(&config, kernel, arguments));
}

}  // namespace convswap
