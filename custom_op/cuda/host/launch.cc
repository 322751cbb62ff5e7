#include "cuda/host/launch.h"

#include <cuda_runtime_api.h>

#include <utility>

#include "cuda/host/check.h"

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

int resident_blocks(const Launch& launch) {
  int blocks = 0;
  CONVSWAP_CHECK_CUDA(cudaOccupancyMaxActiveBlocksPerMultiprocessor(
      &blocks, launch.kernel, static_cast<int>(launch.block.count()), launch.shared_bytes));
  return blocks;
}

Start earliest_start(const void* kernel) {
  // What counts is the code: PTX for an older architecture runs on a newer card too, and does not wait.
  constexpr int kOldest = 90;
  cudaFuncAttributes attributes{};
  CONVSWAP_CHECK_CUDA(cudaFuncGetAttributes(&attributes, kernel));
  return attributes.ptxVersion >= kOldest ? Start::early : Start::in_turn;
}

void enqueue(const Launch& launch, void* stream, void** arguments) {
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(launch.grid.x, launch.grid.y);
  config.blockDim = dim3(launch.block.x, launch.block.y);
  config.dynamicSmemBytes = launch.shared_bytes;
  config.stream = static_cast<cudaStream_t>(stream);
  config.attrs = &early;
  config.numAttrs = launch.start == Start::early ? 1 : 0;
  CONVSWAP_CHECK_CUDA(cudaLaunchKernelExC(&config, launch.kernel, arguments));
}

KernelFacts kernel_facts(std::string name, const Launch& launch) {
  cudaFuncAttributes attributes{};
  CONVSWAP_CHECK_CUDA(cudaFuncGetAttributes(&attributes, launch.kernel));
  KernelFacts facts;
  facts.name = std::move(name);
  facts.registers = attributes.numRegs;
  facts.spilled_bytes = static_cast<int64_t>(attributes.localSizeBytes);
  facts.shared_bytes = static_cast<int64_t>(attributes.sharedSizeBytes + launch.shared_bytes);
  facts.threads = launch.block.count();
  facts.blocks = launch.grid.count();
  return facts;
}

}  // namespace convswap
