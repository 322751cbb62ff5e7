#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "onnx/api.h"
#include "onnx/memory.h"
#include "plan/algorithm.h"

namespace convswap {

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

}  // namespace convswap
