#pragma once

// Memory for a node's runs: from the session's arena, and on the CPU aligned copies of misaligned tensors.

#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "onnx/api.h"
#include "plan/algorithm.h"

namespace convswap {

// Memory from a session's arena, returned when the object is destroyed.
class ArenaMemory {
 public:
  // Finds the arena and allocates nothing. `like` is a tensor in the same kind of memory. Throws
  // OnnxRuntimeError if there is no such arena.
  ArenaMemory(const OrtApi& api, const OrtKernelContext* context, const OrtValue* like);
  ~ArenaMemory();
  ArenaMemory(const ArenaMemory&) = delete;
  ArenaMemory& operator=(const ArenaMemory&) = delete;

  // Throws OnnxRuntimeError if there is not enough memory. Call allocate() or adopt() once.
  void allocate(size_t bytes);
  // Takes ownership of memory that the arena has already given.
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

// True if this ONNX Runtime lends stream-ordered scratch memory, from 1.18 on.
bool lends_scratch(const OrtApiBase& base);

// Scratch memory for one run, from the session's arena, for the object's lifetime. On a card it is ordered by
// the run's stream: it may be returned as soon as the work is enqueued.
class Scratch {
 public:
  // `like` is a tensor in the same kind of memory. Allocates nothing for 0 bytes. Throws OnnxRuntimeError
  // if there is not enough memory, and for a card with ONNX Runtime below 1.18.
  Scratch(const OrtApiBase& base, const OrtApi& api, const OrtKernelContext* context, const OrtValue* like,
          size_t bytes, DeviceKind kind);

  void* pointer() const { return memory_ ? memory_->pointer() : nullptr; }

 private:
  std::optional<ArenaMemory> memory_;
};

// The constant weights of one node in their prepared forms, in the session's arena, freed with the node.
// Thread-safe.
class PreparedWeights {
 public:
  explicit PreparedWeights(const OrtApi& api) : api_(api) {}

  // Returns the weights in the plan's form, in the same kind of memory as `weights`. Enqueues the packing on
  // `stream` if no plan of the form has done so. Returns null if the plan uses the weights unpacked, without
  // memory, and while the stream is captured: a captured packing would repeat in every replay.
  const void* get(const Plan& plan, int device, const OrtKernelContext* context, const OrtValue* weights,
                  const void* data, void* stream);

 private:
  const OrtApi& api_;
  std::mutex mutex_;
  std::unordered_map<std::string, std::unique_ptr<ArenaMemory>> forms_;  // null if memory was short
};

// Host memory aligned for every element type.
struct FreeHostMemory {
  void operator()(std::byte* memory) const;
};
using HostMemory = std::unique_ptr<std::byte[], FreeHostMemory>;

// A tensor's address; null for a null tensor.
void* data_of(const OrtApi& api, const OrtValue* tensor);

// True if `data` is aligned for elements of `element_bytes`.
bool is_aligned(const void* data, size_t element_bytes);

// Aligned copies of a node's misaligned constant inputs on the CPU. ONNX Runtime maps weights at whatever
// offset their file has them. The copies are made with the session and then only read, so concurrent runs
// share them.
class AlignedConstants {
 public:
  AlignedConstants(const OrtApi& api, const OrtKernelInfo* info, size_t element_bytes);

  // Returns the copy of the constant at `data`; null if there is none.
  const void* copy_of(const void* data) const;

 private:
  std::unordered_map<const void*, HostMemory> copies_;
};

// The tensors of one run on the CPU, with aligned copies of misaligned ones: a user may bind memory at any
// address.
class AlignedTensors {
 public:
  AlignedTensors(const OrtApi& api, const AlignedConstants& constants, size_t element_bytes)
      : api_(api), constants_(constants), element_bytes_(element_bytes) {}

  // An aligned address of the input; null for a null tensor.
  const void* input(const OrtValue* tensor);
  // An aligned address for the output; finish() copies it to the tensor.
  void* output(const OrtValue* tensor);
  void finish() const;

 private:
  struct Output {
    void* destination;
    const std::byte* copy;
    size_t bytes;
  };

  const OrtApi& api_;
  const AlignedConstants& constants_;
  const size_t element_bytes_;
  std::vector<HostMemory> memory_;
  std::vector<Output> outputs_;
};

}  // namespace convswap
