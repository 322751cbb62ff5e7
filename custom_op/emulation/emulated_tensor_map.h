#pragma once

#include <cstdint>
#include <cstring>

#include "cuda/primitives/tensor_map.h"

namespace convswap {

// Contents of a TensorMap in the emulation: make_tensor_map writes them, and emulated TMA copies read them.
struct EmulatedTensorMap {
  const char* base;
  int element_bytes;
  int64_t strides[5];  // bytes
  int extents[5];
  short box[5], steps[5];  // elements in shared memory, and their distance in the tensor
  bool rounds_to_tf32;
  bool has_short_rows;  // of 64 bytes instead of 128

  unsigned box_bytes() const {
    return static_cast<unsigned>(element_bytes) * box[0] * box[1] * box[2] * box[3] * box[4];
  }
};
static_assert(sizeof(EmulatedTensorMap) <= sizeof(TensorMap));

inline const EmulatedTensorMap& emulated(const TensorMap& map) {
  return reinterpret_cast<const EmulatedTensorMap&>(map);
}

}  // namespace convswap
