#pragma once

#include <cstddef>
#include <memory>
#include <unordered_map>
#include <vector>

#include "onnx/api.h"

namespace convswap {

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
