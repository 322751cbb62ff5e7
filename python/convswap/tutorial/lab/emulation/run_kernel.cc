// Runs a user's kernel on the processor, thread by thread: run_kernel PROBLEMS RESULTS. Of each problem in
// the file PROBLEMS it runs the kernel twice: first with NaN in shared memory, then with ordinary numbers
// there and the threads of a block from last to first, so that what depends on their order shows. All tensors
// lie between fences. `kernel.h` is the user's file, as emulation_check.py translates it.

#include <array>
#include <cassert>
#include <cstdint>

#include "cuda_emulation.h"

// Of what a course's kernel may use, the rest of what the card gives it.
#define __forceinline__ inline
#define __restrict__ __restrict
#define __ldg(address) (*(address))
inline void __threadfence() {}
inline void __threadfence_block() {}
[[noreturn]] inline void __trap() { emulation::fail("__trap()"); }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __frcp_rn(float a) { return 1.0f / a; }
template <typename T>
T atomicAdd(T* target, T value) {
  const T before = *target;
  *target += value;
  return before;
}
inline float shuffled(float value, int from) {
  emulation::Warp& own = emulation::warp();
  own.values[emulation::lane()] = std::bit_cast<unsigned>(value);
  emulation::sync_warp();
  const float theirs = std::bit_cast<float>(own.values[from < 0 || from > 31 ? emulation::lane() : from]);
  emulation::sync_warp();
  return theirs;
}
inline float __shfl_down_sync(unsigned, float value, unsigned by) {
  return shuffled(value, emulation::lane() + static_cast<int>(by));
}
inline float __shfl_up_sync(unsigned, float value, unsigned by) {
  return shuffled(value, emulation::lane() - static_cast<int>(by));
}
inline float __shfl_sync(unsigned, float value, int lane) { return shuffled(value, lane & 31); }

namespace lab {

alignas(256) unsigned char dynamic_shared[emulation::kSharedBytes];

}  // namespace lab

// Variables that a kernel declares as __shared__ lie in a section of their own, which is filled before each
// block. The first makes the section, should the kernel have none.
#undef __shared__
#define __shared__ [[gnu::section("lab_shared")]] static
[[gnu::section("lab_shared"), gnu::used]] static unsigned lab_first_shared = 1;
extern unsigned char __start_lab_shared[], __stop_lab_shared[];

#include "kernel.h"

namespace lab {
namespace {

constexpr size_t kFenceFloats = 4096;

struct Problem {
  int32_t grid[3], block[3], shared_bytes, takes_conv;
  int32_t sizes[16];  // as of convswap::Conv
  int32_t counts[4];  // floats of x, w, b and y; 0: there is no b
};

// What y holds before the kernel, as faults.py knows it, and what stands around the inputs: NaN both, but not
// the same, since arithmetic on this processor hands a NaN on as it is.
constexpr unsigned kUnwritten = ~0u, kAroundInputs = 0x7fc2'7fc2u;

// Floats between two fences.
class Fenced {
 public:
  Fenced(size_t count, unsigned fence)
      : count_(count), fence_(fence), all_(count + 2 * kFenceFloats, std::bit_cast<float>(fence)) {}
  float* data() { return all_.data() + kFenceFloats; }
  size_t count() const { return count_; }

  // The place of the first float of a fence that was written to: negative before the data, from count() on
  // behind them; INT64_MIN where the fences are whole.
  int64_t damage() const {
    for (size_t i = 0; i < all_.size(); ++i) {
      if (i == kFenceFloats) i += count_;
      if (i < all_.size() && std::bit_cast<unsigned>(all_[i]) != fence_) {
        return static_cast<int64_t>(i) - static_cast<int64_t>(kFenceFloats);
      }
    }
    return INT64_MIN;
  }

 private:
  size_t count_;
  unsigned fence_;
  std::vector<float> all_;
};

void fill_declared_shared() {
  for (unsigned char* at = __start_lab_shared; at + 4 <= __stop_lab_shared; at += 4) {
    std::memcpy(at, &emulation::initial_shared, 4);
  }
}

void start(const Problem& problem, float* y, const float* x, const float* w, const float* b) {
  const int32_t* const s = problem.sizes;
  const dim3 grid(problem.grid[0], problem.grid[1], problem.grid[2]);
  const dim3 block(problem.block[0], problem.block[1], problem.block[2]);
  emulation::run_grid(grid, block, dynamic_shared, static_cast<size_t>(problem.shared_bytes), [=] {
    // The first thread of a block that begins.
    const int threads = emulation::block_threads();
    if (emulation::current == (emulation::runs_backwards ? threads - 1 : 0)) fill_declared_shared();
    LAB_CALL(y, x, w, b, s);
  });
}

// y, and where the kernel wrote what it must not.
void run_once(const Problem& problem, int number, bool is_backwards, const std::vector<float>& x,
              const std::vector<float>& w, const std::vector<float>& b, std::FILE* results) {
  Fenced own_x(x.size(), kAroundInputs), own_w(w.size(), kAroundInputs), own_b(b.size(), kAroundInputs);
  Fenced y(static_cast<size_t>(problem.counts[3]), kUnwritten);
  std::copy(x.begin(), x.end(), own_x.data());
  std::copy(w.begin(), w.end(), own_w.data());
  std::copy(b.begin(), b.end(), own_b.data());
  emulation::runs_backwards = is_backwards;
  emulation::initial_shared = is_backwards ? emulation::kNumberWord : emulation::kNanWord;
  start(problem, y.data(), own_x.data(), own_w.data(), b.empty() ? nullptr : own_b.data());
  const auto tell = [&](const char* name, Fenced& tensor, const std::vector<float>* given) {
    if (const int64_t damage = tensor.damage(); damage != INT64_MIN) {
      std::fprintf(results, "outside %d %s %lld\n", number, name, static_cast<long long>(damage));
    }
    if (given == nullptr) return;
    for (size_t i = 0; i < given->size(); ++i) {
      if (std::memcmp(&(*given)[i], tensor.data() + i, sizeof(float)) == 0) continue;
      std::fprintf(results, "changed %d %s %zu\n", number, name, i);
      return;
    }
  };
  tell("y", y, nullptr);
  tell("x", own_x, &x);
  tell("w", own_w, &w);
  tell("b", own_b, &b);
  std::fprintf(results, "y %d %zu\n", number, y.count());
  std::fwrite(y.data(), sizeof(float), y.count(), results);
  std::fprintf(results, "\n");
  std::fflush(results);
}

std::vector<float> floats_of(std::FILE* file, int32_t count) {
  std::vector<float> values(static_cast<size_t>(count));
  if (std::fread(values.data(), sizeof(float), values.size(), file) != values.size()) std::exit(3);
  return values;
}

}  // namespace
}  // namespace lab

int main(int count, char** arguments) {
  if (count != 3) return 2;
  std::FILE* const problems = std::fopen(arguments[1], "rb");
  std::FILE* const results = std::fopen(arguments[2], "wb");
  if (problems == nullptr || results == nullptr) return 2;
  lab::Problem problem;
  for (int number = 0; std::fread(&problem, sizeof problem, 1, problems) == 1; ++number) {
    const std::vector<float> x = lab::floats_of(problems, problem.counts[0]);
    const std::vector<float> w = lab::floats_of(problems, problem.counts[1]);
    const std::vector<float> b = lab::floats_of(problems, problem.counts[2]);
    std::fprintf(results, "begin %d\n", number);
    std::fflush(results);
    for (const bool is_backwards : {false, true}) {
      lab::run_once(problem, number, is_backwards, x, w, b, results);
    }
  }
  return 0;
}
