#include "onnx/alignment.h"

#include <cstdint>
#include <cstring>
#include <new>
#include <utility>

namespace convswap {
namespace {

// A cache line, as ONNX Runtime's own allocator of the CPU aligns at least.
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
    int is_constant = 0;
    const OrtValue* constant = nullptr;
    check(api, api.KernelInfoGetConstantInput_tensor(info, index, &is_constant, &constant));
    const void* const data = is_constant ? data_of(api, constant) : nullptr;
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
  for (const Output& output : outputs_) std::memcpy(output.wanted, output.written, output.bytes);
}

}  // namespace convswap
