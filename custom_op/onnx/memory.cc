#include "onnx/memory.h"

#include <new>

namespace convswap {

ArenaMemory::ArenaMemory(const OrtApi& api, const OrtKernelContext* context, const OrtValue* beside)
    : api_(api), allocator_(nullptr, {&api}) {
  check(api, api.GetTensorMemoryInfo(beside, &info_));
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

}  // namespace convswap
