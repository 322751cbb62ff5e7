#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <memory>
#include <mutex>

namespace convswap {

// The runs of the last few different shapes of a node. A server repeats some batch sizes, which then need no
// look-up of a plan. Thread-safe.
template <typename Run>
class ShapeCache {
 public:
  // Returns the run for which `matches` is true; null if it is not among them.
  template <typename Matches>
  std::shared_ptr<const Run> find(Matches matches) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found =
        std::ranges::find_if(runs_, [&](const auto& run) { return run != nullptr && matches(*run); });
    return found == runs_.end() ? nullptr : *found;
  }

  void add(std::shared_ptr<const Run> run) {
    const std::lock_guard<std::mutex> lock(mutex_);
    runs_[next_].swap(run);  // the old entry is destroyed outside the lock
    next_ = (next_ + 1) % runs_.size();
  }

 private:
  mutable std::mutex mutex_;
  std::array<std::shared_ptr<const Run>, 4> runs_;
  std::size_t next_ = 0;
};

}  // namespace convswap
