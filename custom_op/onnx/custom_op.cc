#include "onnx/custom_op.h"

#include <limits>

namespace convswap {

CustomOp::CustomOp() : OrtCustomOp{} {
  version = kApiVersion;
  GetInputMemoryType = [](const OrtCustomOp*, size_t) { return OrtMemTypeDefault; };
  GetOutputTypeCount = [](const OrtCustomOp*) -> size_t { return 1; };
  GetOutputCharacteristic = [](const OrtCustomOp*, size_t) { return INPUT_OUTPUT_REQUIRED; };
  GetVariadicInputMinArity = [](const OrtCustomOp*) { return 1; };
  GetVariadicInputHomogeneity = [](const OrtCustomOp*) { return 1; };
  GetVariadicOutputMinArity = [](const OrtCustomOp*) { return 1; };
  GetVariadicOutputHomogeneity = [](const OrtCustomOp*) { return 1; };
  GetStartVersion = [](const OrtCustomOp*) { return 1; };
  GetEndVersion = [](const OrtCustomOp*) { return std::numeric_limits<int>::max(); };
}

const char* provider_of(DeviceKind kind) {
  return kind == DeviceKind::cuda ? "CUDAExecutionProvider" : "CPUExecutionProvider";
}

ONNXTensorElementDataType onnx_type(ElementType type) {
  switch (type) {
    case ElementType::float32:
      return ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT;
    case ElementType::float64:
      return ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE;
    case ElementType::float16:
      return ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16;
    case ElementType::bfloat16:
      return ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16;
    case ElementType::int8:
      return ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8;
    case ElementType::uint8:
      return ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8;
    case ElementType::int32:
      return ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32;
  }
  return ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
}

}  // namespace convswap
