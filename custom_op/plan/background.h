#pragma once

#include <functional>

namespace convswap {

// When work is done that nobody waits for yet: `soon` before all that is `late`, which at most half of the
// cores do at a time, so that the others stay the user's.
enum class When { soon, late };

// Has `work` done by a thread of the library's own, of which there are at most as many as cores. What it
// throws is dropped: whoever needs its result does it again, and is told. In a process that was forked, and
// in one that ends, nothing is done.
void in_background(When when, std::function<void()> work);

// While one is there, something is under way that the end of the process must not meet: the end then waits
// for it, a second at most, and after that skips what else would be done at the end, such as the destructors
// of libraries that are still at work. Work in the background has one.
class TaskGuard {
 public:
  TaskGuard();
  ~TaskGuard();
  TaskGuard(const TaskGuard&) = delete;
  TaskGuard& operator=(const TaskGuard&) = delete;
};

}  // namespace convswap
