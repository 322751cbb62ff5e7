#pragma once

#include <memory>

#include "onnx/api.h"

namespace convswap {

// Memory out of a session's arena, which goes back there with the object.
class ArenaMemory {
 public:
  // None yet. `beside`: a tensor in the memory that is wanted. Throws OnnxRuntimeError where there is no such
  // arena.
  ArenaMemory(const OrtApi& api, const OrtKernelContext* context, const OrtValue* beside);
  ~ArenaMemory();
  ArenaMemory(const ArenaMemory&) = delete;
  ArenaMemory& operator=(const ArenaMemory&) = delete;

  // Throws OnnxRuntimeError where there is not enough. Once.
  void allocate(size_t bytes);
  // Takes over what the arena has given. Once.
  void adopt(void* pointer) { pointer_ = pointer; }

  const OrtMemoryInfo* info() const { return info_; }
  void* pointer() const { return pointer_; }

 private:
  struct ReleaseAllocator {
    const OrtApi* api;
    void operator()(OrtAllocator* allocator) const { api->ReleaseAllocator(allocator); }
  };

  const OrtApi& api_;
  const OrtMemoryInfo* info_ = nullptr;
  std::unique_ptr<OrtAllocator, ReleaseAllocator> allocator_;
  void* pointer_ = nullptr;
};

}  // namespace convswap
