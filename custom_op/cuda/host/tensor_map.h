#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "conv/spec.h"
#include "cuda/primitives/tensor_map.h"

namespace convswap {

// A channels-last tensor (N, D, H, W, C) and the box that TMA copies of it have in shared memory: rows of
// `box[0]` channels, 128 bytes with the 128-byte swizzle or 64 bytes with that of 64 bytes. Axes are in the
// order C, W, H, D, N.
struct TensorBox {
  std::array<int64_t, 5> extents;
  std::array<int64_t, 5> box;    // elements in shared memory
  std::array<int64_t, 5> steps;  // distance of a box's elements in the tensor, from 1 to 8
  bool rounds_to_tf32 = false;   // loads round float32 to TF32, to nearest

  bool has_short_rows(ElementType type) const { return box[0] * bytes_per_element(type) == 64; }
};

// Alignment of a tensor that a map can describe, in bytes.
inline constexpr std::size_t kTensorMapAlignment = 16;

// The map of a tensor at `data`, a multiple of 16 bytes. Throws std::runtime_error if the driver refuses.
TensorMap make_tensor_map(const TensorBox& tensor, ElementType type, const void* data);

}  // namespace convswap
