#pragma once

// Runs CUDA kernels on the CPU, thread by thread, so that their logic can be tested where there is no card:
// each thread of a block is a fiber that runs until a barrier, and blocks follow each other. Included before
// a kernel's own headers, with this folder before custom_op on the include path: the headers of
// cuda/primitives/ that are instructions of the card have counterparts here.
//
// `convswap lab` checks kernels of a user's own so, where there is no card.
//
// Found so: wrong results, reads of what was never written (shared memory begins as NaN or as ordinary
// numbers), writes beyond a block's shared memory, barriers that not all threads reach, copies that are used
// before they were waited for. Not found: races, since a thread runs alone until its next barrier, and fences
// that are missing. Those take compute-sanitizer and a card.

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

// What the language gives a kernel, where no compiler for the card does.
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
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

namespace emulation {

constexpr size_t kStackBytes = 1 << 17;
constexpr size_t kSharedBytes = 1 << 18;
// As float32, as two float16 and two bfloat16. A kernel may take another way where it meets NaN, which hides
// that it read too far: so shared memory begins with ordinary numbers in every second problem.
constexpr unsigned kNotANumber = 0x7fc17fc1u;
constexpr unsigned kOrdinary = 0x42424242u;
constexpr unsigned kBeyond = 0xdeadbeefu;  // what lies behind a block's shared memory

struct Fiber {
  ucontext_t start;
  jmp_buf place;  // where it goes on once it has begun
  std::vector<char> stack;
  uint3 thread;
  bool has_begun, done;
};

// A place where so many threads meet; the last one lets the others go on.
struct Barrier {
  int arrived = 0;
  int generation = 0;
};

struct Warp {
  Barrier barrier;
  unsigned values[32];  // what the lanes show each other, an operand at a time
  unsigned a[32][4], b[32][2];
};

inline std::vector<Fiber> fibers;
inline int current;  // the fiber that runs
inline jmp_buf scheduler;
inline std::vector<Warp> warps;

// Four warps that multiply at once, and the matrix that all of them name.
struct Warpgroup {
  Barrier barrier;
  const void* matrix;
  bool agree = true, agreed = true;
};
inline std::vector<Warpgroup> warpgroups;
inline Barrier block_barrier;
inline bool all_agree, all_agreed;
inline unsigned unwritten = kNotANumber;  // what shared memory begins as
inline bool is_backwards;                 // whether the threads of a block run last to first
inline bool has_moved;                    // whether a thread passed a barrier or ended in this round
inline dim3 block_size, grid_size;
inline uint3 block_index;
inline std::function<void()> thread_body;
inline std::vector<std::function<void()>> block_ends;  // what is checked at the end of a block

// By jumps, between stacks: swapcontext asks the kernel for the signal mask each time, and most of the time
// that a program takes would be that.
inline void yield() {
  if (_setjmp(fibers[current].place) == 0) _longjmp(scheduler, 1);
}

// Lets the current fiber run until it yields.
inline void go_on() {
  Fiber& fiber = fibers[current];
  if (_setjmp(scheduler) != 0) return;
  if (fiber.has_begun) _longjmp(fiber.place, 1);
  fiber.has_begun = true;
  setcontext(&fiber.start);
}

inline int lane() { return current % 32; }
inline Warp& warp() { return warps[current / 32]; }

inline void meet(Barrier& barrier, int threads) {
  const int generation = barrier.generation;
  if (++barrier.arrived == threads) {
    barrier.arrived = 0;
    ++barrier.generation;
  } else {
    while (barrier.generation == generation) yield();
  }
  has_moved = true;
}

inline void meet_warp() { meet(warp().barrier, 32); }

inline void meet_warpgroup() { meet(warpgroups[current / 128].barrier, 128); }

inline bool meet_warpgroup_and(bool agrees) {
  Warpgroup& own = warpgroups[current / 128];
  own.agree = own.agree && agrees;
  if (own.barrier.arrived + 1 == 128) {
    own.agreed = own.agree;
    own.agree = true;
  }
  meet_warpgroup();
  return own.agreed;
}

// A barrier with a number, and whether all of its threads agree.
struct NamedBarrier {
  Barrier barrier;
  bool agree = true, agreed = true;
};
inline NamedBarrier named_barriers[16];

inline bool meet_named(int number, int threads, bool agrees) {
  NamedBarrier& own = named_barriers[number];
  own.agree = own.agree && agrees;
  if (own.barrier.arrived + 1 == threads) {
    own.agreed = own.agree;
    own.agree = true;
  }
  meet(own.barrier, threads);
  return own.agreed;
}

inline int block_threads() { return static_cast<int>(block_size.x * block_size.y * block_size.z); }

inline bool meet_block(bool agrees) {
  all_agree = all_agree && agrees;
  if (block_barrier.arrived + 1 == block_threads()) {
    all_agreed = all_agree;
    all_agree = true;
  }
  meet(block_barrier, block_threads());
  return all_agreed;
}

// Combines a value of every lane of the warp.
template <typename Combine>
unsigned reduce_warp(unsigned value, Combine combine) {
  Warp& own = warp();
  own.values[lane()] = value;
  meet_warp();
  unsigned result = own.values[0];
  for (int other = 1; other < 32; ++other) result = combine(result, own.values[other]);
  meet_warp();
  return result;
}

[[noreturn]] inline void fail(const char* what) {
  std::printf("%s in block (%u, %u)\n", what, block_index.x, block_index.y);
  std::fflush(stdout);
  std::_Exit(1);  // since the destructors of what is global would free the stack that this runs on
}

inline void meet_warpgroup_with(const void* matrix) {
  const void*& named = warpgroups[current / 128].matrix;
  if (current % 128 == 0) named = matrix;
  meet_warpgroup();
  if (named != matrix) fail("a warpgroup that multiplies by different matrices");
  meet_warpgroup();
}

inline void enter_thread() {
  thread_body();
  fibers[current].done = true;
  has_moved = true;
  yield();
}

// Runs `body` as every thread of a block.
inline void run_block(unsigned char* shared, size_t shared_bytes) {
  const int threads = block_threads();
  for (size_t i = 0; i < kSharedBytes; i += 4) {
    std::memcpy(shared + i, i < shared_bytes ? &unwritten : &kBeyond, 4);
  }
  warps.assign((threads + 31) / 32, {});
  warpgroups.assign((threads + 127) / 128, {});
  block_barrier = {};
  std::fill(std::begin(named_barriers), std::end(named_barriers), NamedBarrier());
  all_agree = true;
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
  int left = threads;
  while (left > 0) {
    has_moved = false;
    for (int i = 0; i < threads; ++i) {
      current = is_backwards ? threads - 1 - i : i;
      if (fibers[current].done) continue;
      go_on();
      left -= fibers[current].done;
    }
    if (!has_moved && left > 0) fail("threads wait for each other for ever");
  }
  for (const auto& check : block_ends) check();
  for (size_t i = shared_bytes; i < kSharedBytes; i += 4) {
    if (std::memcmp(shared + i, &kBeyond, 4) != 0) fail("a write beyond shared memory");
  }
}

// Runs `body` as every thread of every block of a grid.
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

// What the language and the hardware give a kernel that runs.

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
inline void __syncwarp() { emulation::meet_warp(); }
inline void __syncthreads() { emulation::meet_block(true); }
inline int __syncthreads_and(int agrees) { return emulation::meet_block(agrees != 0); }
template <typename T>
  requires(sizeof(T) == sizeof(unsigned))
T __shfl_xor_sync(unsigned, T value, int mask) {
  emulation::Warp& own = emulation::warp();
  own.values[emulation::lane()] = std::bit_cast<unsigned>(value);
  emulation::meet_warp();
  const T others = std::bit_cast<T>(own.values[emulation::lane() ^ mask]);
  emulation::meet_warp();
  return others;
}
template <typename T>
  requires(sizeof(T) == sizeof(unsigned))
T __shfl_down_sync(unsigned, T value, int further) {
  emulation::Warp& own = emulation::warp();
  own.values[emulation::lane()] = std::bit_cast<unsigned>(value);
  emulation::meet_warp();
  const int lane = emulation::lane();
  const T theirs = std::bit_cast<T>(own.values[lane + further < 32 ? lane + further : lane]);
  emulation::meet_warp();
  return theirs;
}
template <typename T>
  requires(sizeof(T) == sizeof(unsigned))
T __shfl_sync(unsigned, T value, int lane) {
  emulation::Warp& own = emulation::warp();
  own.values[emulation::lane()] = std::bit_cast<unsigned>(value);
  emulation::meet_warp();
  const T theirs = std::bit_cast<T>(own.values[lane]);
  emulation::meet_warp();
  return theirs;
}
inline int __all_sync(unsigned, int agrees) {
  return emulation::reduce_warp(agrees != 0, [](unsigned a, unsigned b) { return std::min(a, b); });
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
