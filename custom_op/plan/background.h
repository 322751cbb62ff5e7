#pragma once

#include <functional>

namespace convswap {

// Priority of background work. All `high` work precedes `low` work. At most half of the cores do `low` work
// at a time, so that the user keeps the others.
enum class Priority { high, low };

// Runs `work` on a thread of the library's pool, which has at most as many threads as cores. Exceptions are
// dropped: the caller that needs the result repeats the work and gets the exception. A forked process, and a
// process that ends, do nothing.
void in_background(Priority priority, std::function<void()> work);

// Work that must finish before the process exits. The exit waits for all guards, at most a second. After that
// it skips the remaining exit handlers, such as the destructors of libraries that are still at work.
// Background work holds a guard.
class TaskGuard {
 public:
  TaskGuard();
  ~TaskGuard();
  TaskGuard(const TaskGuard&) = delete;
  TaskGuard& operator=(const TaskGuard&) = delete;
};

}  // namespace convswap
