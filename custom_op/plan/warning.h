#pragma once

#include <atomic>
#include <mutex>
#include <string>
#include <utility>

namespace convswap {

// A one-line warning that is taken once. Sessions ask after every run; without a warning that needs no lock.
class Warning {
 public:
  void set(std::string line) {
    const std::lock_guard<std::mutex> lock(mutex_);
    text_ = std::move(line);
    is_set_ = true;
  }

  // Returns the warning and clears it; "" if there is none.
  std::string take() {
    if (!is_set_) return {};
    const std::lock_guard<std::mutex> lock(mutex_);
    is_set_ = false;
    return std::exchange(text_, {});
  }

 private:
  std::mutex mutex_;
  std::string text_;
  std::atomic<bool> is_set_{false};
};

}  // namespace convswap
