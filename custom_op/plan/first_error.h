#pragma once

#include <exception>
#include <mutex>

namespace convswap {

// Carries the first exception of several threads to the thread that waits for them. An exception that leaves
// a thread's function would end the process.
class FirstError {
 public:
  template <typename Function>
  void guard(Function&& function) noexcept {
    try {
      function();
    } catch (...) {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (!error_) error_ = std::current_exception();
    }
  }

  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  std::mutex mutex_;
  std::exception_ptr error_;
};

}  // namespace convswap
