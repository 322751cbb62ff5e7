#include "cuda/host/check.h"
#include "cuda/ladder/no_bias.h"

namespace convswap::ladder {
namespace {

// Zeros by the rules of the language, on each device.
__device__ float zeros[kMostFilters];

}  // namespace

const float* no_bias() {
  void* address = nullptr;
  CONVSWAP_CHECK_CUDA(cudaGetSymbolAddress(&address, zeros));
  return static_cast<const float*>(address);
}

}  // namespace convswap::ladder
