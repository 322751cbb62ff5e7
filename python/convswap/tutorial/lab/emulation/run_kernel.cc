// Runs a user's kernel on the CPU, thread by thread: run_kernel PROBLEMS RESULTS. The kernel runs twice for
// each problem in the file PROBLEMS. The first run has NaN in shared memory. The second has ordinary numbers
// there and runs the threads of a block from last to first, which reveals races. All tensors lie between
// fences. `kernel.h` is the user's file, as emulation_check.py translates it.

#include <signal.h>
#include <sys/prctl.h>

#include <array>
#include <cassert>
#include <cstdint>

#include "cuda_emulation.h"

// Parts of CUDA that a course's kernel may use and cuda_emulation.h lacks.
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
inline int __any_sync(unsigned lanes, int predicate) {
  return emulation::reduce_lanes(lanes, predicate != 0, [](unsigned a, unsigned b) { return a | b; });
}
inline unsigned __ballot_sync(unsigned lanes, int predicate) {
  const unsigned bit = predicate != 0 ? 1u << emulation::lane() : 0;
  return emulation::reduce_lanes(lanes, bit, [](unsigned a, unsigned b) { return a | b; });
}
inline constexpr int warpSize = 32;

namespace lab {

alignas(256) unsigned char dynamic_shared[emulation::kSharedBytes];

}  // namespace lab

// A kernel's __shared__ variables lie in a section of their own, which is filled before each block.
// `lab_first_shared` creates the section if the kernel has none.
#undef __shared__
#define __shared__ [[gnu::section("lab_shared")]] static
[[gnu::section("lab_shared"), gnu::used]] static unsigned lab_first_shared = 1;
extern unsigned char __start_lab_shared[], __stop_lab_shared[];

#include "kernel.h"

namespace lab {
namespace {

constexpr size_t kFenceFloats = 16384;

struct Problem {
  int32_t grid[3], block[3], shared_bytes, takes_conv;
  int32_t sizes[16];  // the members of convswap::Conv, in order
  int32_t counts[4];  // floats of x, w, b and y; 0 for b if there is no bias
};

// Bits of y before a run, as checks.py knows them, and bits around the inputs. Both are NaN. They differ,
// because arithmetic on this CPU passes the bits of a NaN on.
constexpr unsigned kUnwritten = ~0u, kAroundInputs = 0x7fc2'7fc2u;

// Floats between two fences.
class FencedArray {
 public:
  FencedArray(size_t count, unsigned fence)
      : count_(count), fence_(fence), all_(count + 2 * kFenceFloats, std::bit_cast<float>(fence)) {}
  float* data() { return all_.data() + kFenceFloats; }
  size_t count() const { return count_; }

  // Offset from the data of the first overwritten float of a fence: negative before the data, count() or more
  // after them. INT64_MIN if both fences are intact.
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
    // The first thread of a block fills the variables.
    const int threads = emulation::block_threads();
    if (emulation::current == (emulation::runs_backwards ? threads - 1 : 0)) fill_declared_shared();
    LAB_CALL(y, x, w, b, s);
  });
}

// Runs the kernel once. Writes y to `results`, and the first float that was overwritten outside of each
// tensor and inside of each input.
void run_once(const Problem& problem, int number, bool is_backwards, const std::vector<float>& x,
              const std::vector<float>& w, const std::vector<float>& b, std::FILE* results) {
  FencedArray fenced_x(x.size(), kAroundInputs), fenced_w(w.size(), kAroundInputs);
  FencedArray fenced_b(b.size(), kAroundInputs), y(static_cast<size_t>(problem.counts[3]), kUnwritten);
  std::copy(x.begin(), x.end(), fenced_x.data());
  std::copy(w.begin(), w.end(), fenced_w.data());
  std::copy(b.begin(), b.end(), fenced_b.data());
  emulation::runs_backwards = is_backwards;
  emulation::initial_shared = is_backwards ? emulation::kNumberWord : emulation::kNanWord;
  start(problem, y.data(), fenced_x.data(), fenced_w.data(), b.empty() ? nullptr : fenced_b.data());
  const auto report = [&](const char* name, FencedArray& tensor, const std::vector<float>* original) {
    if (const int64_t damage = tensor.damage(); damage != INT64_MIN) {
      std::fprintf(results, "outside %d %s %lld\n", number, name, static_cast<long long>(damage));
    }
    if (original == nullptr) return;
    for (size_t i = 0; i < original->size(); ++i) {
      if (std::memcmp(&(*original)[i], tensor.data() + i, sizeof(float)) == 0) continue;
      std::fprintf(results, "changed %d %s %zu\n", number, name, i);
      return;
    }
  };
  report("y", y, nullptr);
  report("x", fenced_x, &x);
  report("w", fenced_w, &w);
  report("b", fenced_b, &b);
  std::fprintf(results, "y %d %zu\n", number, y.count());
  std::fwrite(y.data(), sizeof(float), y.count(), results);
  std::fprintf(results, "\n");
  std::fflush(results);
}

std::vector<float> read_floats(std::FILE* file, int32_t count) {
  std::vector<float> values(static_cast<size_t>(count));
  if (std::fread(values.data(), sizeof(float), values.size(), file) != values.size()) std::exit(3);
  return values;
}

}  // namespace
}  // namespace lab

int main(int count, char** arguments) {
  if (count != 3) return 2;
  // Ends with the process that waits for it and has the time limit.
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  std::FILE* const problems = std::fopen(arguments[1], "rb");
  std::FILE* const results = std::fopen(arguments[2], "wb");
  if (problems == nullptr || results == nullptr) return 2;
  lab::Problem problem;
  for (int number = 0; std::fread(&problem, sizeof problem, 1, problems) == 1; ++number) {
    const std::vector<float> x = lab::read_floats(problems, problem.counts[0]);
    const std::vector<float> w = lab::read_floats(problems, problem.counts[1]);
    const std::vector<float> b = lab::read_floats(problems, problem.counts[2]);
    std::fprintf(results, "begin %d\n", number);
    std::fflush(results);
    for (const bool is_backwards : {false, true}) {
      lab::run_once(problem, number, is_backwards, x, w, b, results);
    }
  }
  return 0;
}
