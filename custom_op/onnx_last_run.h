#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <utility>

#include "onnx_inputs.h"
#include "plan/algorithm.h"

namespace convswap {

// What a node has found out for the shapes of one run, for every run that has them too.
struct KnownRun {
  NodeInputs::Keys keys;
  const Device& device;
  Shape result;                      // of y
  std::shared_ptr<const Plan> plan;  // null where y has no elements
  std::size_t scratch_bytes = 0;
  bool takes_prepared_weights = false;
  mutable std::atomic<const void*> prepared_weights{nullptr};  // once they are

  bool is_of(const NodeInputs::Keys& own_keys, int device_index) const {
    return device.index == device_index && keys == own_keys;
  }
};

// The run that a node had last: most have the same shapes as the one before, and then look nothing up. Safe
// for concurrent runs.
class LastRun {
 public:
  std::shared_ptr<const KnownRun> get() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return run_;
  }
  void set(std::shared_ptr<const KnownRun> run) {
    const std::lock_guard<std::mutex> lock(mutex_);
    run_.swap(run);  // the former is destroyed when the lock is free
  }

 private:
  mutable std::mutex mutex_;
  std::shared_ptr<const KnownRun> run_;
};

}  // namespace convswap
