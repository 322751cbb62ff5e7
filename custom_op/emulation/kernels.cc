// Compiles a part of a family's kernels for one data format for the CPU. The build defines the words
// KERNEL_FAMILY and FORMAT, the numbers PART and PARTS, and the quoted strings FORMAT_NAME and INSTANCES (the
// family's header in instances/).

#include "cuda_emulation.h"
//
#include INSTANCES

namespace convswap {
static const CompiledKernels kernels(KERNEL_FAMILY::kernels_for<FORMAT, PART, PARTS>(FORMAT_NAME));
}  // namespace convswap
