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
  unsigned threads = 0, idle = 0, guards = 0;
  unsigned doing_late = 0;  // threads that do late work
  bool is_ending = false;
  const pid_t process = getpid();
};

// Never destroyed: its threads may outlast the end of main().
ThreadPool& thread_pool() {
  static ThreadPool& pool = *new ThreadPool;
  return pool;
}

unsigned max_threads() { return std::max(1u, std::thread::hardware_concurrency()); }
unsigned max_late_threads() { return std::max(1u, max_threads() / 2); }

// Takes the next work for a thread; the caller holds the lock. Returns false if there is none.
bool take(ThreadPool& pool, std::function<void()>& work, bool& is_late) {
  is_late = pool.soon.empty();
  if (is_late && (pool.late.empty() || pool.doing_late >= max_late_threads())) return false;
  std::deque<std::function<void()>>& from = is_late ? pool.late : pool.soon;
  work = std::move(from.front());
  from.pop_front();
  if (is_late) ++pool.doing_late;
  return true;
}

void run_worker(ThreadPool& pool) {
  std::unique_lock<std::mutex> lock(pool.mutex);
  for (;;) {
    std::function<void()> work;
    bool is_late = false;
    ++pool.idle;
    pool.work_came.wait(lock, [&] { return pool.is_ending || take(pool, work, is_late); });
    --pool.idle;
    if (pool.is_ending) return;
    lock.unlock();
    {
      const TaskGuard guard;
      try {
        work();
      } catch (const std::exception&) {
      }
      work = nullptr;  // destroys its captures outside the lock
    }
    lock.lock();
    if (is_late) --pool.doing_late;
    pool.work_came.notify_one();
  }
}

void end_with_process(int status, void*) {
  ThreadPool& pool = thread_pool();
  if (pool.process != getpid()) return;
  std::unique_lock<std::mutex> lock(pool.mutex);
  pool.is_ending = true;
  pool.soon.clear();
  pool.late.clear();
  pool.work_came.notify_all();
  if (pool.work_ended.wait_for(lock, kMostWaitAtEnd, [&] { return pool.guards == 0; })) return;
  // NVRTC cannot be cancelled while it compiles in several threads (13.0 aborts), and its destructors would
  // free data that those threads use.
  std::fflush(nullptr);
  _exit(status);
}

// Registers end_with_process as the very first exit handler. A thread-local object of the main thread is
// destroyed before any exit handler runs, and exit handlers run in reverse order of registration. Handlers
// that libraries such as NVRTC register in between therefore run later.
struct EndOfThread {
  ~EndOfThread() {
    if (gettid() == getpid()) static_cast<void>(on_exit(end_with_process, nullptr));
  }
  void watch() {}
};

// Called by every thread that starts work, since one of them is likely the main thread. The static
// registration covers the case that none is.
void watch_process_end() {
  static thread_local EndOfThread end;
  end.watch();
  static const int registered = on_exit(end_with_process, nullptr);
  static_cast<void>(registered);
}

}  // namespace

// A forked process does nothing: a thread that does not exist there may hold the lock.
TaskGuard::TaskGuard() {
  if (thread_pool().process != getpid()) return;
  watch_process_end();
  const std::lock_guard<std::mutex> lock(thread_pool().mutex);
  ++thread_pool().guards;
}

TaskGuard::~TaskGuard() {
  if (thread_pool().process != getpid()) return;
  const std::lock_guard<std::mutex> lock(thread_pool().mutex);
  --thread_pool().guards;
  thread_pool().work_ended.notify_all();
}

void in_background(When when, std::function<void()> work) {
  ThreadPool& pool = thread_pool();
  if (pool.process != getpid()) return;
  watch_process_end();
  const std::lock_guard<std::mutex> lock(pool.mutex);
  if (pool.is_ending) return;
  (when == When::soon ? pool.soon : pool.late).push_back(std::move(work));
  const std::size_t may_begin = max_late_threads() - std::min(max_late_threads(), pool.doing_late);
  const std::size_t waiting = pool.soon.size() + std::min(pool.late.size(), may_begin);
  if (pool.idle < waiting && pool.threads < max_threads()) {
    try {
      std::thread([&pool] { run_worker(pool); }).detach();
      ++pool.threads;
    } catch (const std::system_error&) {
      // The process may have no more threads. Existing threads do the work, or none does.
    }
  }
  pool.work_came.notify_one();
}

}  // namespace convswap
