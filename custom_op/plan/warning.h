#pragma once

#include <atomic>
#include <mutex>
#include <string>
#include <utility>

namespace convswap {

// One line that waits for somebody to take it, once. Sessions ask after every run, and need no lock to learn
// that there is nothing to say.
class Warning {
 public:
  void set(std::string line) {
    const std::lock_guard<std::mutex> lock(mutex_);
    text_ = std::move(line);
    waits_ = true;
  }

  // Empty where there is none.
  std::string take() {
    if (!waits_) return {};
    const std::lock_guard<std::mutex> lock(mutex_);
    waits_ = false;
    return std::exchange(text_, {});
  }

 private:
  std::mutex mutex_;
  std::string text_;
  std::atomic<bool> waits_{false};
};

}  // namespace convswap
