#include "onnx/memory.h"

#include <cstdint>
#include <cstring>
#include <exception>
#include <new>
#include <utility>

#include "cuda/host/launch.h"
#include "cuda/runtime/driver.h"

namespace convswap {
namespace {

constexpr uint32_t kScratchSince = 18;

using GetScratchBuffer = OrtStatus*(ORT_API_CALL*)(const OrtKernelContext*, const OrtMemoryInfo*, size_t,
                                                   void**);

// Returns KernelContext_GetScratchBuffer, which headers of version 17 do not declare. The API table only
// grows at its end. Version 18 appended two functions to version 17; this is the second of them.
GetScratchBuffer scratch_function(const OrtApiBase& base) {
  const OrtApi* const api = base.GetApi(kScratchSince);
  if (api == nullptr) {
    throw OnnxRuntimeError(ORT_NOT_IMPLEMENTED,
                           "ONNX Runtime " + std::string(base.GetVersionString()) +
                               " lends no scratch memory: install onnxruntime-gpu 1.18 or newer");
  }
  constexpr size_t kLastOffset17 = offsetof(OrtApi, SessionOptionsAppendExecutionProvider_OpenVINO_V2);
  constexpr size_t kOffset = kLastOffset17 + 2 * sizeof(GetScratchBuffer);
#if ORT_API_VERSION >= 18
  static_assert(kOffset == offsetof(OrtApi, KernelContext_GetScratchBuffer));
#endif
  GetScratchBuffer function = nullptr;
  std::memcpy(&function, reinterpret_cast<const char*>(api) + kOffset, sizeof function);
  return function;
}

bool is_captured(void* stream) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  const CUresult result = driver().cuStreamIsCapturing(static_cast<CUstream>(stream), &status);
  // The null stream, while a stream that waits for it is captured.
  if (result == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT) return true;
  check_driver(result, "cuStreamIsCapturing");
  return status != CU_STREAM_CAPTURE_STATUS_NONE;
}

// A cache line, the least alignment of ONNX Runtime's own CPU allocator.
constexpr std::align_val_t kAlignment{64};

HostMemory allocate(size_t bytes) { return HostMemory(new (kAlignment) std::byte[bytes]); }

size_t bytes_of(const OrtApi& api, const OrtValue* tensor, size_t element_bytes) {
  OrtTensorTypeAndShapeInfo* raw = nullptr;
  check(api, api.GetTensorTypeAndShape(tensor, &raw));
  const ShapeInfo info(raw, {&api});
  size_t elements = 0;
  check(api, api.GetTensorShapeElementCount(info.get(), &elements));
  return elements * element_bytes;
}

}  // namespace

ArenaMemory::ArenaMemory(const OrtApi& api, const OrtKernelContext* context, const OrtValue* like)
    : api_(api), allocator_(nullptr, {&api}) {
  check(api, api.GetTensorMemoryInfo(like, &info_));
  OrtAllocator* allocator = nullptr;
  check(api, api.KernelContext_GetAllocator(context, info_, &allocator));
  allocator_.reset(allocator);
}

ArenaMemory::~ArenaMemory() {
  if (pointer_ != nullptr) allocator_->Free(allocator_.get(), pointer_);
}

void ArenaMemory::allocate(size_t bytes) {
  check(api_, api_.AllocatorAlloc(allocator_.get(), bytes, &pointer_));
  if (pointer_ == nullptr) throw std::bad_alloc();
}

bool lends_scratch(const OrtApiBase& base) { return is_at_least(base, kScratchSince); }

Scratch::Scratch(const OrtApiBase& base, const OrtApi& api, const OrtKernelContext* context,
                 const OrtValue* like, size_t bytes, DeviceKind kind) {
  if (bytes == 0) return;
  if (kind == DeviceKind::cpu) {
    memory_.emplace(api, context, like);
    memory_->allocate(bytes);
    return;
  }
  const GetScratchBuffer get_scratch_buffer = scratch_function(base);
  memory_.emplace(api, context, like);
  void* pointer = nullptr;
  // ONNX Runtime throws if memory is short. The exception becomes the run's error, as a status does.
  check(api, get_scratch_buffer(context, memory_->info(), bytes, &pointer));
  memory_->adopt(pointer);
}

const void* PreparedWeights::get(const Plan& plan, int device, const OrtKernelContext* context,
                                 const OrtValue* weights, const void* data, void* stream) {
  const PreparedForm form = plan.prepared_form();
  if (form.bytes == 0) return nullptr;
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = forms_.find(form.name);
  if (found != forms_.end()) return found->second == nullptr ? nullptr : found->second->pointer();
  const DeviceGuard guard(device);
  if (is_captured(stream)) return nullptr;
  const RelaxedCaptureMode relaxed;
  std::unique_ptr<ArenaMemory> memory;
  try {
    memory = std::make_unique<ArenaMemory>(api_, context, weights);
    memory->allocate(form.bytes);
  } catch (const std::exception&) {
    // Each run then packs the weights into scratch memory.
    forms_.emplace(form.name, nullptr);
    return nullptr;
  }
  plan.prepare(data, memory->pointer(), stream);
  // Runs on other streams may use them once the lock is free.
  CONVSWAP_CHECK_DRIVER(driver().cuStreamSynchronize(static_cast<CUstream>(stream)));
  return forms_.emplace(form.name, std::move(memory)).first->second->pointer();
}

void FreeHostMemory::operator()(std::byte* memory) const { operator delete[](memory, kAlignment); }

void* data_of(const OrtApi& api, const OrtValue* tensor) {
  void* data = nullptr;
  if (tensor != nullptr) check(api, api.GetTensorMutableData(const_cast<OrtValue*>(tensor), &data));
  return data;
}

bool is_aligned(const void* data, size_t element_bytes) {
  return reinterpret_cast<uintptr_t>(data) % element_bytes == 0;
}

AlignedConstants::AlignedConstants(const OrtApi& api, const OrtKernelInfo* info, size_t element_bytes) {
  size_t count = 0;
  check(api, api.KernelInfo_GetInputCount(info, &count));
  for (size_t index = 0; index < count; ++index) {
    const OrtValue* const constant = constant_input(api, info, index);
    const void* const data = data_of(api, constant);
    if (is_aligned(data, element_bytes)) continue;
    const size_t bytes = bytes_of(api, constant, element_bytes);
    HostMemory copy = allocate(bytes);
    std::memcpy(copy.get(), data, bytes);
    copies_.insert_or_assign(data, std::move(copy));
  }
}

const void* AlignedConstants::copy_of(const void* data) const {
  const auto found = copies_.find(data);
  return found == copies_.end() ? nullptr : found->second.get();
}

const void* AlignedTensors::input(const OrtValue* tensor) {
  const void* const data = data_of(api_, tensor);
  if (is_aligned(data, element_bytes_)) return data;
  if (const void* const copy = constants_.copy_of(data); copy != nullptr) return copy;
  const size_t bytes = bytes_of(api_, tensor, element_bytes_);
  const HostMemory& copy = memory_.emplace_back(allocate(bytes));
  std::memcpy(copy.get(), data, bytes);
  return copy.get();
}

void* AlignedTensors::output(const OrtValue* tensor) {
  void* const data = data_of(api_, tensor);
  if (is_aligned(data, element_bytes_)) return data;
  const size_t bytes = bytes_of(api_, tensor, element_bytes_);
  const HostMemory& memory = memory_.emplace_back(allocate(bytes));
  outputs_.push_back({data, memory.get(), bytes});
  return memory.get();
}

void AlignedTensors::finish() const {
  for (const Output& output : outputs_) std::memcpy(output.destination, output.copy, output.bytes);
}

}  // namespace convswap
