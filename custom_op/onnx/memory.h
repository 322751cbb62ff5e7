#pragma once

// Memory of a node's runs: out of the session's arena, and on the CPU aligned copies of tensors that are not.

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

// Whether this ONNX Runtime lends memory of a stream: 1.18 and newer do.
bool lends_scratch(const OrtApiBase& base);

// Memory for one run of a kernel, out of the session's arena, while the object lives. On a card it belongs to
// the run's stream, so that it may be given back as soon as the work is enqueued: another stream gets it
// later.
class Scratch {
 public:
  // `beside`: a tensor in the memory that is wanted. No memory where `bytes` is 0. Throws OnnxRuntimeError
  // where there is not enough, and for a card where ONNX Runtime is older than 1.18, which knows no memory of
  // a stream.
  Scratch(const OrtApiBase& base, const OrtApi& api, const OrtKernelContext* context, const OrtValue* beside,
          size_t bytes, DeviceKind kind);

  void* pointer() const { return memory_ ? memory_->pointer() : nullptr; }

 private:
  std::optional<ArenaMemory> memory_;
};

// The weights of one node that stays the same for the life of its session, as plans have prepared them: out
// of the session's arena, freed with the node. Safe for concurrent runs.
class PreparedWeights {
 public:
  explicit PreparedWeights(const OrtApi& api) : api_(api) {}

  // The weights in the plan's form, which are prepared on `stream` where no plan has done so yet; their
  // memory is where `weights` are. Null where the plan takes them as they are, where there is no memory for
  // them, and while the stream is captured, since what is captured would be done in every replay.
  const void* get(const Plan& plan, int device, const OrtKernelContext* context, const OrtValue* weights,
                  const void* data, void* stream);

 private:
  const OrtApi& api_;
  std::mutex mutex_;
  std::unordered_map<std::string, std::unique_ptr<ArenaMemory>> forms_;  // null: there was no memory
};

// Memory of the host in which elements of every type may begin.
struct FreeHostMemory {
  void operator()(std::byte* memory) const;
};
using HostMemory = std::unique_ptr<std::byte[], FreeHostMemory>;

// Where a tensor begins; null where there is no tensor.
void* data_of(const OrtApi& api, const OrtValue* tensor);

// Whether elements of `element_bytes` may begin at `data`.
bool is_aligned(const void* data, size_t element_bytes);

// The constant inputs of one node on the CPU that begin between two elements: ONNX Runtime maps weights where
// their file has them, at whatever offset. Copied once, when the session is made; then only read, so that
// concurrent runs share them.
class AlignedConstants {
 public:
  AlignedConstants(const OrtApi& api, const OrtKernelInfo* info, size_t element_bytes);

  // The copy of the constant that begins at `data`; null where there is none.
  const void* copy_of(const void* data) const;

 private:
  std::unordered_map<const void*, HostMemory> copies_;
};

// The tensors of one run on the CPU, or copies of those that begin between two elements: a user may bind
// memory that begins anywhere.
class AlignedTensors {
 public:
  AlignedTensors(const OrtApi& api, const AlignedConstants& constants, size_t element_bytes)
      : api_(api), constants_(constants), element_bytes_(element_bytes) {}

  // Where an input can be read; null where there is none.
  const void* input(const OrtValue* tensor);
  // Where an output can be written; `finish` brings it to the tensor.
  void* output(const OrtValue* tensor);
  void finish() const;

 private:
  struct Output {
    void* wanted;
    const std::byte* written;
    size_t bytes;
  };

  const OrtApi& api_;
  const AlignedConstants& constants_;
  const size_t element_bytes_;
  std::vector<HostMemory> memory_;
  std::vector<Output> outputs_;
};

}  // namespace convswap
