#include "cuda/primitives/kernel_facts.h"

#include "cuda/primitives/check.h"

namespace convswap {
namespace {

int64_t count(dim3 extents) { return static_cast<int64_t>(extents.x) * extents.y * extents.z; }

}  // namespace

KernelFacts kernel_facts(std::string name, const void* kernel, dim3 grid, dim3 block, size_t shared_bytes) {
  cudaFuncAttributes attributes{};
  CONVSWAP_CHECK_CUDA(cudaFuncGetAttributes(&attributes, kernel));
  KernelFacts facts;
  facts.name = std::move(name);
  facts.registers = attributes.numRegs;
  facts.spilled_bytes = static_cast<int64_t>(attributes.localSizeBytes);
  facts.shared_bytes = static_cast<int64_t>(attributes.sharedSizeBytes + shared_bytes);
  facts.threads = count(block);
  facts.blocks = count(grid);
  return facts;
}

}  // namespace convswap
