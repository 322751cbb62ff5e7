#include "cuda/host/tensor_map.h"

#include "cuda/runtime/driver.h"

namespace convswap {
namespace {

CUtensorMapDataType data_type(ElementType type) {
  switch (type) {
    case ElementType::float16:
      return CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
    case ElementType::bfloat16:
      return CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    case ElementType::int8:
    case ElementType::uint8:
      return CU_TENSOR_MAP_DATA_TYPE_UINT8;
    default:
      return CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
  }
}

}  // namespace

TensorMap make_tensor_map(const TensorBox& tensor, ElementType type, const void* data) {
  constexpr cuuint32_t kRank = 5;
  cuuint64_t extents[kRank], strides[kRank - 1];
  cuuint32_t box[kRank], steps[kRank];
  cuuint64_t stride = static_cast<cuuint64_t>(bytes_per_element(type));
  for (cuuint32_t axis = 0; axis < kRank; ++axis) {
    extents[axis] = static_cast<cuuint64_t>(tensor.extents[axis]);
    stride *= extents[axis];
    if (axis + 1 < kRank) strides[axis] = stride;
    // The driver counts a box in elements of the tensor.
    box[axis] = static_cast<cuuint32_t>(tensor.box[axis] * tensor.steps[axis]);
    steps[axis] = static_cast<cuuint32_t>(tensor.steps[axis]);
  }
  TensorMap map;
  static_assert(sizeof map == sizeof(CUtensorMap));
  CONVSWAP_CHECK_DRIVER(driver().cuTensorMapEncodeTiled(
      reinterpret_cast<CUtensorMap*>(&map),
      tensor.rounds_to_tf32 ? CU_TENSOR_MAP_DATA_TYPE_TFLOAT32 : data_type(type), kRank,
      const_cast<void*>(data), extents, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
      tensor.has_short_rows(type) ? CU_TENSOR_MAP_SWIZZLE_64B : CU_TENSOR_MAP_SWIZZLE_128B,
      CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE));
  return map;
}

}  // namespace convswap
