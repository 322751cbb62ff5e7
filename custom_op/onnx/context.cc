#include "onnx/context.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <functional>

#include "conv/error.h"
#include "onnx/memory.h"
#include "plan/first_error.h"

namespace convswap {
namespace {

// ONNX Runtime's thread pool as a ParallelFor.
ParallelFor session_threads(const OrtApi& api, const OrtKernelContext* context) {
  return [&api, context](std::ptrdiff_t tasks, const std::function<void(std::ptrdiff_t)>& body) {
    struct Call {
      const std::function<void(std::ptrdiff_t)>& body;
      FirstError error;
    } call{body, {}};
    const auto run_task = [](void* data, size_t task) {
      Call& running = *static_cast<Call*>(data);
      running.error.guard([&] { running.body(static_cast<std::ptrdiff_t>(task)); });
    };
    check(api, api.KernelContext_ParallelFor(context, run_task, static_cast<size_t>(tasks), 0, &call));
    call.error.rethrow();
  };
}

}  // namespace

std::string node_name(const OrtApi& api, const OrtKernelInfo* info) {
  size_t size = 0;
  check(api, api.KernelInfo_GetNodeName(info, nullptr, &size));
  std::string name(size, '\0');
  check(api, api.KernelInfo_GetNodeName(info, name.data(), &size));
  return name.c_str();
}

std::optional<int> device_of_session(const OrtApi& api, const OrtValue* constant) {
  const int cards = cuda_device_count();
  if (cards <= 1) return cards == 1 ? std::optional<int>(0) : std::nullopt;
  if (constant == nullptr) return std::nullopt;
  const OrtMemoryInfo* memory = nullptr;
  OrtMemoryInfoDeviceType type = OrtMemoryInfoDeviceType_CPU;
  check(api, api.GetTensorMemoryInfo(constant, &memory));
  api.MemoryInfoGetDeviceType(memory, &type);
  if (type != OrtMemoryInfoDeviceType_GPU) return std::nullopt;
  int index = 0;
  check(api, api.MemoryInfoGetId(memory, &index));
  return index;
}

std::vector<int64_t> batches_to_plan(const Shape& x) {
  const auto is_unknown = [](int64_t extent) { return extent < 0; };
  if (x.size() < 3 || std::any_of(x.begin() + 1, x.end(), is_unknown)) return {};
  if (is_unknown(x[0])) return {1, 8, 64, 512};
  return {x[0]};
}

int device_index(const OrtApi& api, const OrtValue* tensor, DeviceKind kind) {
  int index = 0;
  if (kind == DeviceKind::cpu) return index;
  const OrtMemoryInfo* memory = nullptr;
  check(api, api.GetTensorMemoryInfo(tensor, &memory));
  check(api, api.MemoryInfoGetId(memory, &index));
  return index;
}

Execution execution_of(const OrtApi& api, OrtKernelContext* context, DeviceKind kind) {
  Execution execution;
  if (kind == DeviceKind::cpu) {
    execution.parallel_for = session_threads(api, context);
  } else {
    check(api, api.KernelContext_GetGPUComputeStream(context, &execution.stream));
  }
  return execution;
}

void* aligned_data(const OrtApi& api, const OrtValue* tensor, int64_t element_bytes) {
  void* const data = data_of(api, tensor);
  if (!is_aligned(data, static_cast<size_t>(element_bytes))) {
    throw InvalidArgument("a tensor begins at an address that is not a multiple of its elements' " +
                          std::to_string(element_bytes) + " bytes: bind aligned memory");
  }
  return data;
}

void log_warning(const OrtApi& api, const OrtKernelContext* context, const std::string& text) {
  if (text.empty()) return;
  const OrtLogger* logger = nullptr;
  check(api, api.KernelContext_GetLogger(context, &logger));
  check(api, api.Logger_LogMessage(logger, ORT_LOGGING_LEVEL_WARNING, text.c_str(), "onnx/context.cc",
                                   __LINE__, "convswap"));
}

void log_compiling(const OrtApi& api, const OrtKernelContext* context, const Device& device,
                   const Offer& offer) {
  static std::atomic<bool> is_logged{false};
  if (device.kind == DeviceKind::cpu || is_logged) return;
  const std::string notice = compilation_notice(device, offer);
  if (!notice.empty() && !is_logged.exchange(true)) log_warning(api, context, notice);
}

}  // namespace convswap
