#include "cpu/thread_team.h"

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "plan/first_error.h"

namespace convswap {

ParallelFor thread_team(int threads) {
  return [threads](std::ptrdiff_t tasks, const std::function<void(std::ptrdiff_t)>& body) {
    const unsigned wanted =
        threads > 0 ? static_cast<unsigned>(threads) : std::max(1u, std::thread::hardware_concurrency());
    FirstError error;
    std::atomic<std::ptrdiff_t> next{0};
    const auto work = [&] {
      for (std::ptrdiff_t task = next++; task < tasks; task = next++) {
        error.guard([&] { body(task); });
      }
    };
    std::vector<std::jthread> team;
    const auto helpers = std::min<std::ptrdiff_t>(wanted, tasks) - 1;
    for (std::ptrdiff_t i = 0; i < helpers; ++i) team.emplace_back(work);
    work();
    team.clear();
    error.rethrow();
  };
}

}  // namespace convswap
