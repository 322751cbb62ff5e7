#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "conv/spec.h"
#include "cuda/primitives/tensor_map.h"

namespace convswap {

// A channels-last tensor (N, D, H, W, C) and the box that TMA copies of it have in shared memory: rows of
// `box[0]` channels, 128 bytes with the 128-byte swizzle. Axes are in the order C, W, H, D, N.
struct TensorBox {
  std::array<int64_t, 5> extents;
  std::array<int64_t, 5> box;    // elements in shared memory
  std::array<int64_t, 5> steps;  // distance of a box's elements in the tensor, from 1 to 8
};

// Alignment of a tensor that a map can describe, in bytes.
inline constexpr std::size_t kTensorMapAlignment = 16;

// True if a tensor map can describe the tensor, whatever its address: the limits of cuTensorMapEncodeTiled.
inline bool can_map(const TensorBox& tensor, ElementType type) {
  constexpr int64_t kMaxBox = 256, kMaxExtent = int64_t{1} << 32, kMaxStride = int64_t{1} << 40;
  int64_t stride = bytes_per_element(type);
  for (std::size_t axis = 0; axis < tensor.box.size(); ++axis) {
    if (tensor.box[axis] * tensor.steps[axis] > kMaxBox || tensor.extents[axis] > kMaxExtent) return false;
    stride *= tensor.extents[axis];
    if (axis + 1 < tensor.box.size() && (stride % 16 != 0 || stride >= kMaxStride)) return false;
  }
  return true;
}

// The map of a tensor at `data`, a multiple of 16 bytes. Throws std::runtime_error if the driver refuses.
TensorMap make_tensor_map(const TensorBox& tensor, ElementType type, const void* data);

}  // namespace convswap
