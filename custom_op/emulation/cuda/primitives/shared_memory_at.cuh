#pragma once

#include "cuda/primitives/shared_offset.h"
#include "cuda_emulation.h"

namespace convswap {

namespace KERNEL_FAMILY {
extern unsigned char shared[];
}
template <typename Part>
Part* shared_memory_at(Offset<Part> offset) {
  return offset.in(KERNEL_FAMILY::shared + emulation::rank() * emulation::kSharedBytes);
}

}  // namespace convswap
