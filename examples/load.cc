// Runs a swapped model from C++, through ONNX Runtime's C API and convswap's op library.
//
//   convswap swap model.onnx -o swapped.onnx
//   cmake -S examples -B build/examples -DONNXRUNTIME_LIBRARY=/path/to/libonnxruntime.so
//   cmake --build build/examples
//   build/examples/load /path/to/libconvswap.so swapped.onnx [input.bin] [--cuda] [convswap.ENTRY=VALUE...]
//
// input.bin has the float32 values of the model's only input. By default the values count from 0 to 255,
// repeatedly. Symbolic dimensions are 1. --cuda uses the first NVIDIA card. convswap.ENTRY is a session
// config entry: with convswap.pack=FILE convswap.compile=never, kernels come from a pack that `convswap warm`
// wrote, and no compiler is needed.

#include <onnxruntime_c_api.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace {

// The oldest API version with all functions used here; every newer ONNX Runtime provides it.
constexpr uint32_t kApiVersion = 17;
constexpr int64_t kShown = 10;

const OrtApi* api = nullptr;

void check(OrtStatus* status) {
  if (status == nullptr) return;
  const std::string message = api->GetErrorMessage(status);
  api->ReleaseStatus(status);
  throw std::runtime_error(message);
}

// Calls `create` with the address of a pointer, and owns the object it creates.
template <typename T, typename Create>
std::unique_ptr<T, void (*)(T*)> make(Create create, void (*release)(T*)) {
  T* object = nullptr;
  check(create(&object));
  return {object, release};
}

std::string name_of(const OrtSession* session, decltype(OrtApi::SessionGetInputName) get_name) {
  OrtAllocator* allocator = nullptr;
  check(api->GetAllocatorWithDefaultOptions(&allocator));
  char* text = nullptr;
  check(get_name(session, 0, allocator, &text));
  const std::string name = text;
  check(api->AllocatorFree(allocator, text));
  return name;
}

std::vector<int64_t> shape_of(const OrtTensorTypeAndShapeInfo* info) {
  size_t rank = 0;
  check(api->GetDimensionsCount(info, &rank));
  std::vector<int64_t> shape(rank);
  check(api->GetDimensions(info, shape.data(), rank));
  return shape;
}

int64_t count(const std::vector<int64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

std::vector<int64_t> input_shape(const OrtSession* session) {
  const auto type = make<OrtTypeInfo>(
      [&](auto** out) { return api->SessionGetInputTypeInfo(session, 0, out); }, api->ReleaseTypeInfo);
  const OrtTensorTypeAndShapeInfo* info = nullptr;  // belongs to `type`
  check(api->CastTypeInfoToTensorInfo(type.get(), &info));
  if (info == nullptr) throw std::runtime_error("the model's input is no tensor");
  std::vector<int64_t> shape = shape_of(info);
  std::replace_if(shape.begin(), shape.end(), [](int64_t extent) { return extent < 0; }, 1);
  return shape;
}

std::vector<float> counting_up(int64_t size) {
  std::vector<float> values(size);
  for (int64_t i = 0; i < size; ++i) values[i] = static_cast<float>(i % 256);
  return values;
}

std::vector<float> read_values(const std::string& path, int64_t size) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot read " + path);
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  if (bytes.size() != size * sizeof(float)) {
    throw std::runtime_error(path + " has " + std::to_string(bytes.size()) + " bytes; expected " +
                             std::to_string(size * sizeof(float)) + ", the model's input in float32");
  }
  std::vector<float> values(size);
  std::copy(bytes.begin(), bytes.end(), reinterpret_cast<char*>(values.data()));
  return values;
}

void print(const std::string& name, const OrtValue* value) {
  const auto info = make<OrtTensorTypeAndShapeInfo>(
      [&](auto** out) { return api->GetTensorTypeAndShape(value, out); }, api->ReleaseTensorTypeAndShapeInfo);
  ONNXTensorElementDataType type{};
  check(api->GetTensorElementType(info.get(), &type));
  if (type != ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT)
    throw std::runtime_error("the model's output is not float32");
  void* data = nullptr;
  check(api->GetTensorMutableData(const_cast<OrtValue*>(value), &data));
  const std::vector<int64_t> shape = shape_of(info.get());
  std::printf("%s [", name.c_str());
  for (size_t axis = 0; axis < shape.size(); ++axis) {
    std::printf(axis == 0 ? "%lld" : ", %lld", static_cast<long long>(shape[axis]));
  }
  std::printf("]");
  for (int64_t i = 0; i < std::min(count(shape), kShown); ++i) {
    std::printf(" %.6g", static_cast<const float*>(data)[i]);
  }
  std::printf("\n");
}

struct Choices {
  std::string library, model, input;  // paths; no input: ""
  bool on_card = false;
  std::vector<std::pair<std::string, std::string>> entries;  // of the session, by their names
};

// Parses the arguments; throws if they are wrong.
Choices choices_of(const std::vector<std::string>& arguments) {
  std::vector<std::string> paths;
  Choices choices;
  for (const std::string& argument : arguments) {
    const size_t equals = argument.find('=');
    if (argument == "--cuda") {
      choices.on_card = true;
    } else if (argument.rfind("convswap.", 0) == 0 && equals != std::string::npos) {
      choices.entries.emplace_back(argument.substr(0, equals), argument.substr(equals + 1));
    } else {
      paths.push_back(argument);
    }
  }
  if (paths.size() != 2 && paths.size() != 3) {
    throw std::runtime_error(
        "usage: load LIBCONVSWAP.SO SWAPPED.ONNX [INPUT.BIN] [--cuda] [convswap.ENTRY=VALUE...]");
  }
  paths.resize(3);
  choices.library = paths[0], choices.model = paths[1], choices.input = paths[2];
  return choices;
}

void append_cuda_provider(OrtSessionOptions* options) {
  const auto cuda = make<OrtCUDAProviderOptionsV2>(
      [](auto** out) { return api->CreateCUDAProviderOptions(out); }, api->ReleaseCUDAProviderOptions);
  check(api->SessionOptionsAppendExecutionProvider_CUDA_V2(options, cuda.get()));
}

void run(const Choices& choices) {
  const auto env = make<OrtEnv>(
      [](auto** out) { return api->CreateEnv(ORT_LOGGING_LEVEL_WARNING, "load", out); }, api->ReleaseEnv);
  const auto options = make<OrtSessionOptions>([](auto** out) { return api->CreateSessionOptions(out); },
                                               api->ReleaseSessionOptions);
  // Entries come first: the library reads them when it is registered.
  for (const auto& [name, value] : choices.entries) {
    check(api->AddSessionConfigEntry(options.get(), name.c_str(), value.c_str()));
  }
  check(api->RegisterCustomOpsLibrary_V2(options.get(), choices.library.c_str()));
  if (choices.on_card) append_cuda_provider(options.get());
  const auto session = make<OrtSession>(
      [&](auto** out) { return api->CreateSession(env.get(), choices.model.c_str(), options.get(), out); },
      api->ReleaseSession);

  const std::vector<int64_t> shape = input_shape(session.get());
  std::vector<float> values =
      choices.input.empty() ? counting_up(count(shape)) : read_values(choices.input, count(shape));
  const auto memory = make<OrtMemoryInfo>(
      [](auto** out) { return api->CreateCpuMemoryInfo(OrtArenaAllocator, OrtMemTypeDefault, out); },
      api->ReleaseMemoryInfo);
  const auto input = make<OrtValue>(
      [&](auto** out) {
        return api->CreateTensorWithDataAsOrtValue(memory.get(), values.data(), values.size() * sizeof(float),
                                                   shape.data(), shape.size(),
                                                   ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, out);
      },
      api->ReleaseValue);

  const std::string input_name = name_of(session.get(), api->SessionGetInputName);
  const std::string output_name = name_of(session.get(), api->SessionGetOutputName);
  const char* const input_names[] = {input_name.c_str()};
  const char* const output_names[] = {output_name.c_str()};
  const OrtValue* const inputs[] = {input.get()};
  const auto output = make<OrtValue>(
      [&](auto** out) {
        return api->Run(session.get(), nullptr, input_names, inputs, 1, output_names, 1, out);
      },
      api->ReleaseValue);
  print(output_name, output.get());
}

}  // namespace

int main(int count, char** arguments) {
  const OrtApiBase* base = OrtGetApiBase();
  api = base->GetApi(kApiVersion);
  if (api == nullptr) {
    std::fprintf(stderr, "load: ONNX Runtime is %s; expected 1.%u or newer\n", base->GetVersionString(),
                 kApiVersion);
    return 2;
  }
  try {
    run(choices_of({arguments + 1, arguments + count}));
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "load: %s\n", error.what());
    return 2;
  }
}
