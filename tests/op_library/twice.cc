// A library with an op of somebody else's: test.Twice, which doubles a tensor of float32 on the CPU. Another
// symbol than RegisterCustomOps is exported where NO_REGISTRATION is defined, and it fails where FAILS is.

#include <onnxruntime_c_api.h>

namespace {

const OrtApi* api = nullptr;

void compute(void*, OrtKernelContext* context) {
  const OrtValue* input = nullptr;
  OrtValue* output = nullptr;
  OrtTensorTypeAndShapeInfo* info = nullptr;
  size_t rank = 0;
  size_t count = 0;
  int64_t shape[8] = {};
  float* from = nullptr;
  float* to = nullptr;
  // None of these can fail for a tensor of at most eight dimensions, as the tests have.
  api->KernelContext_GetInput(context, 0, &input);
  api->GetTensorTypeAndShape(input, &info);
  api->GetDimensionsCount(info, &rank);
  api->GetDimensions(info, shape, rank);
  api->GetTensorShapeElementCount(info, &count);
  api->ReleaseTensorTypeAndShapeInfo(info);
  api->KernelContext_GetOutput(context, 0, shape, rank, &output);
  api->GetTensorMutableData(const_cast<OrtValue*>(input), reinterpret_cast<void**>(&from));
  api->GetTensorMutableData(output, reinterpret_cast<void**>(&to));
  for (size_t i = 0; i < count; ++i) to[i] = 2 * from[i];
}

[[maybe_unused]] OrtCustomOp twice_op() {
  OrtCustomOp op = {};
  op.version = 17;
  op.CreateKernel = [](const OrtCustomOp*, const OrtApi*, const OrtKernelInfo*) -> void* {
    static char kernel;
    return &kernel;
  };
  op.KernelDestroy = [](void*) {};
  op.KernelCompute = compute;
  op.GetName = [](const OrtCustomOp*) { return "Twice"; };
  op.GetExecutionProviderType = [](const OrtCustomOp*) -> const char* { return nullptr; };
  op.GetInputTypeCount = [](const OrtCustomOp*) -> size_t { return 1; };
  op.GetOutputTypeCount = [](const OrtCustomOp*) -> size_t { return 1; };
  op.GetInputType = [](const OrtCustomOp*, size_t) { return ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT; };
  op.GetOutputType = [](const OrtCustomOp*, size_t) { return ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT; };
  op.GetInputCharacteristic = [](const OrtCustomOp*, size_t) { return INPUT_OUTPUT_REQUIRED; };
  op.GetOutputCharacteristic = [](const OrtCustomOp*, size_t) { return INPUT_OUTPUT_REQUIRED; };
  op.GetInputMemoryType = [](const OrtCustomOp*, size_t) { return OrtMemTypeDefault; };
  op.GetVariadicInputMinArity = [](const OrtCustomOp*) { return 0; };
  op.GetVariadicInputHomogeneity = [](const OrtCustomOp*) { return 0; };
  op.GetVariadicOutputMinArity = [](const OrtCustomOp*) { return 0; };
  op.GetVariadicOutputHomogeneity = [](const OrtCustomOp*) { return 0; };
  op.GetStartVersion = [](const OrtCustomOp*) { return 1; };
  op.GetEndVersion = [](const OrtCustomOp*) { return 1; };
  return op;
}

}  // namespace

#ifdef NO_REGISTRATION
#define RegisterCustomOps SomethingElse
#endif

extern "C" __attribute__((visibility("default")))
OrtStatus* ORT_API_CALL RegisterCustomOps(OrtSessionOptions* options, const OrtApiBase* base) {
#ifdef FAILS
  (void)options;
  return base->GetApi(17)->CreateStatus(ORT_FAIL, "this library takes no sessions");
#else
  api = base->GetApi(17);
  static const OrtCustomOp op = twice_op();
  OrtCustomOpDomain* domain = nullptr;
  if (OrtStatus* status = api->CreateCustomOpDomain("test", &domain)) return status;
  // It lives as long as the library, as ONNX Runtime asks.
  if (OrtStatus* status = api->CustomOpDomain_Add(domain, &op)) return status;
  return api->AddCustomOpDomain(options, domain);
#endif
}
