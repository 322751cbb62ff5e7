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

void launch(const void* kernel, dim3 grid, dim3 block, size_t shared_bytes, void* stream, void** arguments) {
  CONVSWAP_CHECK_CUDA(
      cudaLaunchKernel(kernel, grid, block, arguments, shared_bytes, static_cast<cudaStream_t>(stream)));
}

}  // namespace convswap
