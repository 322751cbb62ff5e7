#include "plan/background.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <deque>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

namespace convswap {
namespace {

constexpr std::chrono::milliseconds kMaxWaitAtExit{900};

struct ThreadPool {
  std::mutex mutex;
  std::condition_variable work_added, work_done;
  std::deque<std::function<void()>> high, low;
  unsigned threads = 0, idle = 0, guards = 0;
  unsigned busy_with_low = 0;  // threads that do low-priority work
  bool is_exiting = false;
  const pid_t process = getpid();
};

// Never destroyed: its threads may outlast the end of main().
ThreadPool& thread_pool() {
  static ThreadPool& pool = *new ThreadPool;
  return pool;
}

unsigned max_threads() { return std::max(1u, std::thread::hardware_concurrency()); }
unsigned max_low_threads() { return std::max(1u, max_threads() / 2); }

// Takes the next work for a thread; the caller holds the lock. Returns false if there is none.
bool take(ThreadPool& pool, std::function<void()>& work, bool& is_low) {
  is_low = pool.high.empty();
  if (is_low && (pool.low.empty() || pool.busy_with_low >= max_low_threads())) return false;
  std::deque<std::function<void()>>& from = is_low ? pool.low : pool.high;
  work = std::move(from.front());
  from.pop_front();
  if (is_low) ++pool.busy_with_low;
  return true;
}

void run_worker(ThreadPool& pool) {
  std::unique_lock<std::mutex> lock(pool.mutex);
  for (;;) {
    std::function<void()> work;
    bool is_low = false;
    ++pool.idle;
    pool.work_added.wait(lock, [&] { return pool.is_exiting || take(pool, work, is_low); });
    --pool.idle;
    if (pool.is_exiting) return;
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
    if (is_low) --pool.busy_with_low;
    pool.work_added.notify_one();
  }
}

void end_with_process(int status, void*) {
  ThreadPool& pool = thread_pool();
  if (pool.process != getpid()) return;
  std::unique_lock<std::mutex> lock(pool.mutex);
  pool.is_exiting = true;
  pool.high.clear();
  pool.low.clear();
  pool.work_added.notify_all();
  if (pool.work_done.wait_for(lock, kMaxWaitAtExit, [&] { return pool.guards == 0; })) return;
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
  thread_pool().work_done.notify_all();
}

void in_background(Priority priority, std::function<void()> work) {
  ThreadPool& pool = thread_pool();
  if (pool.process != getpid()) return;
  watch_process_end();
  const std::lock_guard<std::mutex> lock(pool.mutex);
  if (pool.is_exiting) return;
  (priority == Priority::high ? pool.high : pool.low).push_back(std::move(work));
  const std::size_t may_start = max_low_threads() - std::min(max_low_threads(), pool.busy_with_low);
  const std::size_t waiting = pool.high.size() + std::min(pool.low.size(), may_start);
  if (pool.idle < waiting && pool.threads < max_threads()) {
    try {
      std::thread([&pool] { run_worker(pool); }).detach();
      ++pool.threads;
    } catch (const std::system_error&) {
      // The process may have no more threads. Existing threads do the work, or none does.
    }
  }
  pool.work_added.notify_one();
}

}  // namespace convswap
