#include "plan/background.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

namespace convswap {
namespace {

constexpr std::chrono::milliseconds kMostWaitAtEnd{900};

struct ThreadPool {
  std::mutex mutex;
  std::condition_variable work_came, work_ended;
  std::deque<std::function<void()>> soon, late;
  unsigned threads = 0, idle = 0, unfinished = 0;
  unsigned doing_late = 0;  // threads at work on what is late
  bool is_ending = false;
  const pid_t process = getpid();
};

// Never destroyed: its threads may outlast the end of main().
ThreadPool& crew() {
  static ThreadPool& own = *new ThreadPool;
  return own;
}

unsigned most_threads() { return std::max(1u, std::thread::hardware_concurrency()); }
unsigned most_late() { return std::max(1u, most_threads() / 2); }

// What a thread does next; the lock is held. False where there is nothing for it.
bool take(ThreadPool& own, std::function<void()>& work, bool& is_late) {
  is_late = own.soon.empty();
  if (is_late && (own.late.empty() || own.doing_late >= most_late())) return false;
  std::deque<std::function<void()>>& from = is_late ? own.late : own.soon;
  work = std::move(from.front());
  from.pop_front();
  if (is_late) ++own.doing_late;
  return true;
}

void work_for(ThreadPool& own) {
  std::unique_lock<std::mutex> lock(own.mutex);
  for (;;) {
    std::function<void()> work;
    bool is_late = false;
    ++own.idle;
    own.work_came.wait(lock, [&] { return own.is_ending || take(own, work, is_late); });
    --own.idle;
    if (own.is_ending) return;
    lock.unlock();
    {
      const TaskGuard unfinished;
      try {
        work();
      } catch (const std::exception&) {
      }
      work = nullptr;  // with what it holds
    }
    lock.lock();
    if (is_late) --own.doing_late;
    own.work_came.notify_one();
  }
}

void end_with_process(int status, void*) {
  ThreadPool& own = crew();
  if (own.process != getpid()) return;
  std::unique_lock<std::mutex> lock(own.mutex);
  own.is_ending = true;
  own.soon.clear();
  own.late.clear();
  own.work_came.notify_all();
  if (own.work_ended.wait_for(lock, kMostWaitAtEnd, [&] { return own.unfinished == 0; })) return;
  // The compiler cannot be told to give up while it compiles in several threads (NVRTC 13.0 aborts), and its
  // destructors would take from under them what they work on.
  std::fflush(nullptr);
  _exit(status);
}

// Destroyed at the end of its thread; that of the main thread at the end of the process, before any function
// that is registered for it. A function registered then is the first that is called. So nothing of the end
// comes before ours, whatever libraries register while they are at work: the compiler does.
struct EndOfThread {
  ~EndOfThread() {
    if (gettid() == getpid()) static_cast<void>(on_exit(end_with_process, nullptr));
  }
  void watch() {}
};

// In every thread that begins something, since one of them is likely the main one; and once for all others.
void watch_process_end() {
  static thread_local EndOfThread end;
  end.watch();
  static const int registered = on_exit(end_with_process, nullptr);
  static_cast<void>(registered);
}

}  // namespace

// In a process that was forked a lock may be held by a thread that is not there.
TaskGuard::TaskGuard() {
  if (crew().process != getpid()) return;
  watch_process_end();
  const std::lock_guard<std::mutex> lock(crew().mutex);
  ++crew().unfinished;
}

TaskGuard::~TaskGuard() {
  if (crew().process != getpid()) return;
  const std::lock_guard<std::mutex> lock(crew().mutex);
  --crew().unfinished;
  crew().work_ended.notify_all();
}

void in_background(When when, std::function<void()> work) {
  ThreadPool& own = crew();
  if (own.process != getpid()) return;
  watch_process_end();
  const std::lock_guard<std::mutex> lock(own.mutex);
  if (own.is_ending) return;
  (when == When::soon ? own.soon : own.late).push_back(std::move(work));
  const std::size_t may_begin = most_late() - std::min(most_late(), own.doing_late);
  const std::size_t waiting = own.soon.size() + std::min(own.late.size(), may_begin);
  if (own.idle < waiting && own.threads < most_threads()) {
    try {
      std::thread([&own] { work_for(own); }).detach();
      ++own.threads;
    } catch (const std::system_error&) {
      // The process may have no more threads: then those that are there do it, or nobody.
    }
  }
  own.work_came.notify_one();
}

}  // namespace convswap
