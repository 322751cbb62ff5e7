#pragma once

// Runs CUDA kernels on the CPU, thread by thread, to test their logic without a card. Each thread of a block
// is a fiber that runs until a barrier; blocks run one after the other. Include this header before a kernel's
// own headers, with this folder before custom_op on the include path: it has replacements for the headers of
// cuda/primitives/ that contain PTX.
//
// `convswap lab` checks users' kernels with it if there is no card.
//
// Detected: wrong results, reads of uninitialised shared memory (filled with NaN or with ordinary numbers),
// writes beyond a block's shared memory, barriers that not all threads reach, asynchronous copies that are
// read before they are waited for, a warpgroup that relies on another one to keep up with it. Not detected:
// races, since a thread runs alone until its next barrier, and missing fences. Those need compute-sanitizer
// and a card.

#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>

// CUDA's built-in types.
struct alignas(8) int2 {
  int x, y;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct uint3 {
  unsigned x, y, z;
};
struct alignas(16) int4 {
  int x, y, z, w;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct dim3 {
  unsigned x = 1, y = 1, z = 1;

  constexpr dim3(unsigned width = 1, unsigned height = 1, unsigned depth = 1)
      : x(width), y(height), z(depth) {}
};
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

// Optimizes a function that takes much of a program's time; optimizing all would double the time to compile.
#define EMULATION_HOT [[gnu::optimize("O2")]]

namespace emulation {

constexpr size_t kStackBytes = 1 << 17;
constexpr size_t kSharedBytes = 1 << 18;
// Initial contents of shared memory. The first is NaN as float32, as two float16 and as two bfloat16. A
// kernel may take another path for NaN and thus hide an out-of-bounds read, so every second problem starts
// with ordinary numbers.
constexpr unsigned kNanWord = 0x7fc17fc1u;
constexpr unsigned kNumberWord = 0x42424242u;
constexpr unsigned kGuardWord = 0xdeadbeefu;  // contents beyond a block's shared memory

struct Fiber {
  ucontext_t start;
  jmp_buf resume_point;  // valid once the fiber has begun
  std::vector<char> stack;
  uint3 thread;
  bool has_begun, done;
};

// A barrier of a fixed number of threads; the last arrival releases the others.
struct Barrier {
  int arrived = 0;
  int generation = 0;
};

struct Warp {
  Barrier barrier;
  unsigned values[32];  // operand of a shuffle or reduction, by lane
  unsigned a[32][4], b[32][2];
};

inline std::vector<Fiber> fibers;
inline int current;  // index of the running fiber
inline jmp_buf scheduler;
inline std::vector<Warp> warps;

// Barrier of four warps that execute wgmma together, and the descriptor that all must pass.
struct Warpgroup {
  Barrier barrier;
  const void* descriptor;
  bool predicate = true, result = true;
};
inline std::vector<Warpgroup> warpgroups;
inline Barrier block_barrier;
inline bool block_predicate, block_result;
inline unsigned initial_shared = kNanWord;  // initial contents of shared memory
inline bool runs_backwards;                 // the threads of a block run in descending order
inline int slow_warpgroup = -1;             // runs only while the block's other threads wait; -1 for none
inline bool made_progress;                  // a thread passed a barrier or ended in this round
inline dim3 block_size, grid_size;
inline uint3 block_index;
inline std::function<void()> thread_body;
inline std::vector<std::function<void()>> block_end_checks;  // run after each block

// Switches stacks by longjmp: swapcontext would spend most of the program's time on system calls for the
// signal mask.
inline void yield() {
  if (_setjmp(fibers[current].resume_point) == 0) _longjmp(scheduler, 1);
}

// Resumes the current fiber until it yields.
inline void resume() {
  Fiber& fiber = fibers[current];
  if (_setjmp(scheduler) != 0) return;
  if (fiber.has_begun) _longjmp(fiber.resume_point, 1);
  fiber.has_begun = true;
  setcontext(&fiber.start);
}

inline int lane() { return current % 32; }
inline Warp& warp() { return warps[current / 32]; }

inline void arrive_and_wait(Barrier& barrier, int threads) {
  const int generation = barrier.generation;
  if (++barrier.arrived == threads) {
    barrier.arrived = 0;
    ++barrier.generation;
  } else {
    while (barrier.generation == generation) yield();
  }
  made_progress = true;
}

inline void sync_warp() { arrive_and_wait(warp().barrier, 32); }

inline void sync_warpgroup() { arrive_and_wait(warpgroups[current / 128].barrier, 128); }

inline bool sync_warpgroup_all(bool predicate) {
  Warpgroup& warpgroup = warpgroups[current / 128];
  warpgroup.predicate = warpgroup.predicate && predicate;
  if (warpgroup.barrier.arrived + 1 == 128) {
    warpgroup.result = warpgroup.predicate;
    warpgroup.predicate = true;
  }
  sync_warpgroup();
  return warpgroup.result;
}

// A numbered barrier (bar.sync, bar.red.and).
struct NamedBarrier {
  Barrier barrier;
  bool predicate = true, result = true;
};
inline NamedBarrier named_barriers[16];

inline bool sync_named_barrier(int number, int threads, bool predicate) {
  NamedBarrier& named = named_barriers[number];
  named.predicate = named.predicate && predicate;
  if (named.barrier.arrived + 1 == threads) {
    named.result = named.predicate;
    named.predicate = true;
  }
  arrive_and_wait(named.barrier, threads);
  return named.result;
}

inline int block_threads() { return static_cast<int>(block_size.x * block_size.y * block_size.z); }

inline bool sync_block(bool predicate) {
  block_predicate = block_predicate && predicate;
  if (block_barrier.arrived + 1 == block_threads()) {
    block_result = block_predicate;
    block_predicate = true;
  }
  arrive_and_wait(block_barrier, block_threads());
  return block_result;
}

// Reduces a value over the lanes of the warp.
template <typename Combine>
unsigned reduce_warp(unsigned value, Combine combine) {
  Warp& w = warp();
  w.values[lane()] = value;
  sync_warp();
  unsigned result = w.values[0];
  for (int other = 1; other < 32; ++other) result = combine(result, w.values[other]);
  sync_warp();
  return result;
}

[[noreturn]] inline void fail(const char* message) {
  std::printf("%s in block (%u, %u)\n", message, block_index.x, block_index.y);
  std::fflush(stdout);
  std::_Exit(1);  // not exit(): destructors of globals would free the stack in use
}

inline void check_same_descriptor(const void* descriptor) {
  const void*& expected = warpgroups[current / 128].descriptor;
  if (current % 128 == 0) expected = descriptor;
  sync_warpgroup();
  if (expected != descriptor) fail("a warpgroup whose threads pass different smem descriptors");
  sync_warpgroup();
}

inline void enter_thread() {
  thread_body();
  fibers[current].done = true;
  made_progress = true;
  yield();
}

// Runs `thread_body` in every thread of one block.
EMULATION_HOT inline void run_block(unsigned char* shared, size_t shared_bytes) {
  const int threads = block_threads();
  for (size_t i = 0; i < kSharedBytes; i += 4) {
    std::memcpy(shared + i, i < shared_bytes ? &initial_shared : &kGuardWord, 4);
  }
  warps.assign((threads + 31) / 32, {});
  warpgroups.assign((threads + 127) / 128, {});
  block_barrier = {};
  std::fill(std::begin(named_barriers), std::end(named_barriers), NamedBarrier());
  block_predicate = true;
  if (fibers.size() < static_cast<size_t>(threads)) fibers.resize(threads);
  for (int i = 0; i < threads; ++i) {
    Fiber& fiber = fibers[i];
    fiber.stack.resize(kStackBytes);
    const auto number = static_cast<unsigned>(i);
    fiber.thread = {number % block_size.x, number / block_size.x % block_size.y,
                    number / (block_size.x * block_size.y)};
    fiber.has_begun = fiber.done = false;
    getcontext(&fiber.start);
    fiber.start.uc_stack.ss_sp = fiber.stack.data();
    fiber.start.uc_stack.ss_size = fiber.stack.size();
    fiber.start.uc_link = nullptr;
    makecontext(&fiber.start, enter_thread, 0);
  }
  int running = threads;
  // Resumes the threads of the slow warpgroup, or all others.
  const auto resume_threads = [&](bool are_slow) {
    for (int i = 0; i < threads; ++i) {
      current = runs_backwards ? threads - 1 - i : i;
      if (fibers[current].done || (current / 128 == slow_warpgroup) != are_slow) continue;
      resume();
      running -= fibers[current].done;
    }
  };
  while (running > 0) {
    made_progress = false;
    resume_threads(false);
    if (!made_progress) resume_threads(true);
    if (!made_progress && running > 0) fail("threads wait for each other for ever");
  }
  for (const auto& check : block_end_checks) check();
  const size_t guard_bytes = kSharedBytes - shared_bytes;
  if (guard_bytes > 0 &&
      (std::memcmp(shared + shared_bytes, &kGuardWord, 4) != 0 ||
       std::memcmp(shared + shared_bytes, shared + shared_bytes + 4, guard_bytes - 4) != 0)) {
    fail("a write beyond shared memory");
  }
}

// Runs `body` in every thread of every block of a grid.
inline void run_grid(dim3 grid, dim3 block, unsigned char* shared, size_t shared_bytes,
                     std::function<void()> body) {
  grid_size = grid;
  block_size = block;
  thread_body = std::move(body);
  for (block_index.z = 0; block_index.z < grid.z; ++block_index.z) {
    for (block_index.y = 0; block_index.y < grid.y; ++block_index.y) {
      for (block_index.x = 0; block_index.x < grid.x; ++block_index.x) run_block(shared, shared_bytes);
    }
  }
}

}  // namespace emulation

// CUDA's built-in variables, qualifiers and functions.

#define __host__
#define __device__
#define __global__
#define __shared__
#define __constant__
#define __noinline__
#define __align__(bytes)
#define __launch_bounds__(...)
#define __grid_constant__
#define threadIdx (emulation::fibers[emulation::current].thread)
#define blockIdx emulation::block_index
#define blockDim emulation::block_size
#define gridDim emulation::grid_size

using std::max;
using std::min;
inline unsigned min(unsigned a, int b) { return std::min(a, static_cast<unsigned>(b)); }

inline int __clz(unsigned a) { return std::countl_zero(a); }
inline float __int_as_float(int a) { return std::bit_cast<float>(a); }
inline float __uint_as_float(unsigned a) { return std::bit_cast<float>(a); }
inline unsigned __float_as_uint(float a) { return std::bit_cast<unsigned>(a); }
inline int __float_as_int(float a) { return std::bit_cast<int>(a); }
// The bytes of a, and from 4 on of b, that the four digits of the selector name.
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
  const unsigned long long bytes = a | static_cast<unsigned long long>(b) << 32;
  unsigned result = 0;
  for (int i = 0; i < 4; ++i) {
    result |= static_cast<unsigned>(bytes >> 8 * (selector >> 4 * i & 7) & 0xff) << 8 * i;
  }
  return result;
}
inline void __syncwarp() { emulation::sync_warp(); }
inline void __syncthreads() { emulation::sync_block(true); }
inline int __syncthreads_and(int predicate) { return emulation::sync_block(predicate != 0); }
template <typename T>
  requires(sizeof(T) == sizeof(unsigned))
T __shfl_xor_sync(unsigned, T value, int mask) {
  emulation::Warp& warp = emulation::warp();
  warp.values[emulation::lane()] = std::bit_cast<unsigned>(value);
  emulation::sync_warp();
  const T received = std::bit_cast<T>(warp.values[emulation::lane() ^ mask]);
  emulation::sync_warp();
  return received;
}
inline double __shfl_xor_sync(unsigned lanes, double value, int mask) {
  auto words = std::bit_cast<std::array<unsigned, 2>>(value);
  for (unsigned& word : words) word = __shfl_xor_sync(lanes, word, mask);
  return std::bit_cast<double>(words);
}
template <typename T>
  requires(sizeof(T) == sizeof(unsigned))
T __shfl_down_sync(unsigned, T value, int delta) {
  emulation::Warp& warp = emulation::warp();
  warp.values[emulation::lane()] = std::bit_cast<unsigned>(value);
  emulation::sync_warp();
  const int lane = emulation::lane();
  const T received = std::bit_cast<T>(warp.values[lane + delta < 32 ? lane + delta : lane]);
  emulation::sync_warp();
  return received;
}
template <typename T>
  requires(sizeof(T) == sizeof(unsigned))
T __shfl_sync(unsigned, T value, int lane) {
  emulation::Warp& warp = emulation::warp();
  warp.values[emulation::lane()] = std::bit_cast<unsigned>(value);
  emulation::sync_warp();
  const T received = std::bit_cast<T>(warp.values[lane]);
  emulation::sync_warp();
  return received;
}
inline int __all_sync(unsigned, int predicate) {
  return emulation::reduce_warp(predicate != 0, [](unsigned a, unsigned b) { return std::min(a, b); });
}
inline unsigned __reduce_max_sync(unsigned, unsigned value) {
  return emulation::reduce_warp(value, [](unsigned a, unsigned b) { return std::max(a, b); });
}
inline unsigned __reduce_min_sync(unsigned, unsigned value) {
  return emulation::reduce_warp(value, [](unsigned a, unsigned b) { return std::min(a, b); });
}
inline unsigned __reduce_add_sync(unsigned, unsigned value) {
  return emulation::reduce_warp(value, [](unsigned a, unsigned b) { return a + b; });
}
inline void atomicMax(unsigned* target, unsigned value) { *target = std::max(*target, value); }
inline void atomicMin(unsigned* target, unsigned value) { *target = std::min(*target, value); }
