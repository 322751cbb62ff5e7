#pragma once

#include <optional>

#include "onnx/api.h"
#include "onnx/memory.h"
#include "plan/device.h"

namespace convswap {

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

}  // namespace convswap
