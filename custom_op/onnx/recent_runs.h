#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <utility>

#include "onnx/inputs.h"
#include "plan/algorithm.h"

namespace convswap {

// What a node has found out for the shapes of one run, for every run that has them too.
struct KnownRun {
  KnownRun(const NodeInputs::Keys& own_keys, const Device& own_device, Shape own_result)
      : keys(own_keys), device(own_device), result(std::move(own_result)) {}

  bool is_of(const NodeInputs::Keys& other, int device_index) const {
    return device.index == device_index && keys == other;
  }

  NodeInputs::Keys keys;
  const Device& device;
  Shape result;                      // of y
  std::shared_ptr<const Plan> plan;  // null where y has no elements
  std::size_t scratch_bytes = 0;
  bool takes_prepared_weights = false;
  mutable std::atomic<const void*> prepared_weights{nullptr};  // once they are
};

// The last few runs of a node that differed: a server has some batch sizes that come again and again, and
// then nothing is looked up or computed. Safe for concurrent runs.
class RecentRuns {
 public:
  // Null where none of them is.
  std::shared_ptr<const KnownRun> find(const NodeInputs::Keys& keys, int device_index) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = std::ranges::find_if(
        runs_, [&](const auto& run) { return run != nullptr && run->is_of(keys, device_index); });
    return found == runs_.end() ? nullptr : *found;
  }

  void add(std::shared_ptr<const KnownRun> run) {
    const std::lock_guard<std::mutex> lock(mutex_);
    runs_[next_].swap(run);  // the former is destroyed when the lock is free
    next_ = (next_ + 1) % runs_.size();
  }

 private:
  mutable std::mutex mutex_;
  std::array<std::shared_ptr<const KnownRun>, 4> runs_;
  std::size_t next_ = 0;
};

}  // namespace convswap
