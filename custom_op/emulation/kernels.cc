// Compiles a family's kernels for one data format for the CPU. The build defines the words KERNEL_FAMILY and
// FORMAT, and the quoted strings FORMAT_NAME and INSTANCES (the family's header in instances/).

#include "cuda_emulation.h"
//
#include INSTANCES

namespace convswap {
static const CompiledKernels kernels(KERNEL_FAMILY::kernels_for<FORMAT>(FORMAT_NAME));
}  // namespace convswap
