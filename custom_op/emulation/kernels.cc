// A part of the kernels of a family for a format of the data, compiled for the processor. The build defines
// FAMILY and FORMAT, words, PART and PARTS, numbers, and FORMAT_NAME and INSTANCES, the latter the family's
// header in instances/, in quotes.

#include "cuda_emulation.h"
//
#include INSTANCES

namespace convswap {
static const CompiledKernels kernels(FAMILY::kernels_for<FORMAT, PART, PARTS>(FORMAT_NAME));
}  // namespace convswap
