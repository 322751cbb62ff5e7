#pragma once

// Runs CUDA kernels on the CPU, thread by thread, to test their logic without a card. Each thread of a block
// is a fiber that runs until a barrier; blocks run one after the other, those of a cluster together. Include
// this header before a kernel's own headers, with this folder before custom_op on the include path: it has
// replacements for the headers of cuda/primitives/ that contain PTX.
//
// `convswap lab` checks users' kernels with it if there is no card.
//
// Detected: wrong results, reads of uninitialised shared memory (filled with NaN or with ordinary numbers),
// writes beyond a block's shared memory, barriers that not all threads reach, asynchronous copies that are
// read before they are waited for, a warpgroup or a block of a cluster that relies on others to keep up with
// it. Not detected: races, since a thread runs alone until its next barrier, and missing fences. Those need
// compute-sanitizer and a card.

#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

// CUDA's built-in types.
struct alignas(4) short2 {
  short x, y;
};
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
constexpr size_t kSharedBytes = 1 << 18;  // of a block
constexpr int kMaxClusterBlocks = 8;
constexpr int kMaxFibers = kMaxClusterBlocks * 1024;
// Initial contents of shared memory. The first is NaN as float32, as two float16 and as two bfloat16. A
// kernel may take another path for NaN and thus hide an out-of-bounds read, so every second problem starts
// with ordinary numbers.
constexpr unsigned kNanWord = 0x7fc17fc1u;
constexpr unsigned kNumberWord = 0x42424242u;
constexpr unsigned kGuardWord = 0xdeadbeefu;  // contents beyond a block's shared memory

struct Fiber {
  ucontext_t start;
  jmp_buf resume_point;           // valid once the fiber has begun
  std::unique_ptr<char[]> stack;  // not initialised: most of it is never used
  uint3 thread;
  bool has_begun, done;
};

// A barrier of a fixed number of threads; the last arrival releases the others.
struct Barrier {
  int arrived = 0;
  int generation = 0;
};

// Lanes that a __..._sync() function names and that meet there. Groups of different lanes meet independently.
struct LaneGroup {
  Barrier barrier;
  unsigned lanes = 0;
};

struct Warp {
  unsigned running = 0;  // lanes whose threads exist and have not ended
  LaneGroup groups[32];  // by their first lane
  unsigned values[32];   // operand of a shuffle or reduction, by lane
  unsigned a[32][4], b[32][2];
};

inline std::vector<Fiber> fibers;  // of the blocks that run together, each with block_fibers
inline int block_fibers = 1;
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

// A numbered barrier (bar.sync, bar.red.and).
struct NamedBarrier {
  Barrier barrier;
  bool predicate = true, result = true;
};

struct Block {
  uint3 index;
  int running = 0;            // threads
  NamedBarrier barriers[17];  // the last is that of __syncthreads
};
inline std::vector<Block> blocks;           // that run together
inline int cluster_arrived;                 // fibers
inline unsigned initial_shared = kNanWord;  // initial contents of shared memory
inline bool runs_backwards;                 // the threads of a block run in descending order
inline int slow_warpgroup = -1;             // runs only while the other threads wait; -1 for none
inline int slow_rank = -1;                  // the same for a block of a cluster
inline int slow_warp_pair = -1;             // the same for two warps of a block
inline bool made_progress;                  // a thread passed a barrier or ended in this round
inline dim3 block_size, grid_size;
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
inline int rank() { return current / block_fibers; }  // of the block in the cluster
inline Block& block() { return blocks[rank()]; }
inline Warp& warp() { return warps[current / 32]; }

inline void release(Barrier& barrier) {
  barrier.arrived = 0;
  ++barrier.generation;
}

inline void arrive_and_wait(Barrier& barrier, int threads) {
  const int generation = barrier.generation;
  if (++barrier.arrived == threads) {
    release(barrier);
  } else {
    while (barrier.generation == generation) yield();
  }
  made_progress = true;
}

[[noreturn]] inline void fail(const char* message) {
  std::printf("%s in block (%u, %u)\n", message, block().index.x, block().index.y);
  std::fflush(stdout);
  std::_Exit(1);  // not exit(): destructors of globals would free the stack in use
}

// Waits for the other lanes of `lanes`; those whose threads have ended do not count.
inline void sync_lanes(unsigned lanes) {
  if ((lanes >> lane() & 1) == 0) fail("a lane outside of its mask");
  LaneGroup& group = warp().groups[std::countr_zero(lanes)];
  group.lanes = lanes;
  arrive_and_wait(group.barrier, std::popcount(lanes & warp().running));
}

inline void sync_warp() { sync_lanes(~0u); }

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

inline bool sync_named_barrier(int number, int threads, bool predicate) {
  NamedBarrier& named = block().barriers[number];
  named.predicate = named.predicate && predicate;
  if (named.barrier.arrived + 1 == threads) {
    named.result = named.predicate;
    named.predicate = true;
  }
  arrive_and_wait(named.barrier, threads);
  return named.result;
}

inline int block_threads() { return static_cast<int>(block_size.x * block_size.y * block_size.z); }

// __syncthreads, which from compute capability 7.0 on does not wait for threads that have ended.
inline bool sync_block(bool predicate) { return sync_named_barrier(16, block().running, predicate); }

// Ends the current thread, and releases those that waited for it alone.
inline void end_thread() {
  NamedBarrier& named = block().barriers[16];
  if (--block().running == named.barrier.arrived && named.barrier.arrived > 0) {
    named.result = named.predicate;
    named.predicate = true;
    release(named.barrier);
  }
  Warp& its = warp();
  its.running &= ~(1u << lane());
  for (LaneGroup& group : its.groups) {
    Barrier& barrier = group.barrier;
    if (barrier.arrived > 0 && barrier.arrived == std::popcount(group.lanes & its.running)) release(barrier);
  }
  fibers[current].done = true;
  made_progress = true;
}

// The cluster's barrier, at which every thread arrives once.
inline void arrive_at_cluster() {
  ++cluster_arrived;
  made_progress = true;
}
inline void wait_for_cluster() {
  while (cluster_arrived < block_threads() * static_cast<int>(blocks.size())) yield();
  made_progress = true;
}

// Reduces a value over the lanes of a mask.
template <typename Combine>
unsigned reduce_lanes(unsigned lanes, unsigned value, Combine combine) {
  Warp& w = warp();
  w.values[lane()] = value;
  sync_lanes(lanes);
  unsigned result = value;
  for (int other = 0; other < 32; ++other) {
    if (other != lane() && (lanes & w.running) >> other & 1) result = combine(result, w.values[other]);
  }
  sync_lanes(lanes);
  return result;
}

// The value of lane `from`, or the lane's own if there is no such lane in its segment of `width` lanes.
template <typename T>
  requires(sizeof(T) == sizeof(unsigned))
T shuffle(unsigned lanes, T value, int from, int width) {
  Warp& w = warp();
  w.values[lane()] = std::bit_cast<unsigned>(value);
  sync_lanes(lanes);
  const bool is_inside = from >= 0 && from / width == lane() / width;
  const T received = std::bit_cast<T>(w.values[is_inside ? from : lane()]);
  sync_lanes(lanes);
  return received;
}
template <typename T>
  requires(sizeof(T) == 2 * sizeof(unsigned))
T shuffle(unsigned lanes, T value, int from, int width) {
  auto words = std::bit_cast<std::array<unsigned, 2>>(value);
  for (unsigned& word : words) word = shuffle(lanes, word, from, width);
  return std::bit_cast<T>(words);
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
  end_thread();
  yield();
}

// Runs `thread_body` in every thread of `blocks`, whose shared memories follow each other.
EMULATION_HOT inline void run_blocks(unsigned char* shared, size_t shared_bytes) {
  const int threads = block_threads(), cluster = static_cast<int>(blocks.size());
  for (size_t i = 0; i < cluster * kSharedBytes; i += 4) {
    std::memcpy(shared + i, i % kSharedBytes < shared_bytes ? &initial_shared : &kGuardWord, 4);
  }
  // A warp and a warpgroup are of one block.
  block_fibers = cluster > 1 ? (threads + 127) / 128 * 128 : threads;
  const int count = cluster * block_fibers;
  warps.assign((count + 31) / 32, {});
  warpgroups.assign((count + 127) / 128, {});
  cluster_arrived = 0;
  if (fibers.size() < static_cast<size_t>(count)) fibers.resize(count);
  int running = 0;
  for (int i = 0; i < count; ++i) {
    Fiber& fiber = fibers[i];
    const auto number = static_cast<unsigned>(i % block_fibers);
    fiber.thread = {number % block_size.x, number / block_size.x % block_size.y,
                    number / (block_size.x * block_size.y)};
    fiber.has_begun = false;
    fiber.done = static_cast<int>(number) >= threads;
    if (fiber.done) continue;
    ++running;
    ++blocks[i / block_fibers].running;
    warps[i / 32].running |= 1u << i % 32;
    if (!fiber.stack) fiber.stack.reset(new char[kStackBytes]);
    getcontext(&fiber.start);
    fiber.start.uc_stack.ss_sp = fiber.stack.get();
    fiber.start.uc_stack.ss_size = kStackBytes;
    fiber.start.uc_link = nullptr;
    makecontext(&fiber.start, enter_thread, 0);
  }
  // Resumes the threads of the slow warpgroup, block and warps, or all others.
  const auto resume_threads = [&](bool are_slow) {
    for (int i = 0; i < count; ++i) {
      current = runs_backwards ? count - 1 - i : i;
      const int thread = current % block_fibers;
      const bool is_slow = thread / 128 == slow_warpgroup || thread / 64 == slow_warp_pair ||
                           (cluster > 1 && rank() == slow_rank);
      if (fibers[current].done || is_slow != are_slow) continue;
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
  for (int i = 0; guard_bytes > 0 && i < cluster; ++i, shared += kSharedBytes) {
    current = i * block_fibers;
    if (std::memcmp(shared + shared_bytes, &kGuardWord, 4) != 0 ||
        std::memcmp(shared + shared_bytes, shared + shared_bytes + 4, guard_bytes - 4) != 0) {
      fail("a write beyond shared memory");
    }
  }
}

// Runs `body` in every thread of every block of a grid, in clusters of `cluster` blocks along x.
inline void run_grid(dim3 grid, dim3 block, unsigned char* shared, size_t shared_bytes,
                     std::function<void()> body, unsigned cluster = 1) {
  grid_size = grid;
  block_size = block;
  thread_body = std::move(body);
  if (grid.x % cluster != 0) {
    std::printf("a grid of %u blocks in clusters of %u\n", grid.x, cluster);
    std::exit(1);
  }
  for (unsigned z = 0; z < grid.z; ++z) {
    for (unsigned y = 0; y < grid.y; ++y) {
      for (unsigned x = 0; x < grid.x; x += cluster) {
        blocks.assign(cluster, {});
        for (unsigned rank = 0; rank < cluster; ++rank) blocks[rank].index = {x + rank, y, z};
        run_blocks(shared, shared_bytes);
      }
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
#define blockIdx (emulation::block().index)
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
inline void __syncthreads() { emulation::sync_block(true); }
inline int __syncthreads_and(int predicate) { return emulation::sync_block(predicate != 0); }
inline void __syncwarp(unsigned lanes = ~0u) { emulation::sync_lanes(lanes); }
template <typename T>
T __shfl_sync(unsigned lanes, T value, int lane, int width = 32) {
  const int segment = emulation::lane() / width * width;
  return emulation::shuffle(lanes, value, segment + (lane & (width - 1)), width);
}
template <typename T>
T __shfl_xor_sync(unsigned lanes, T value, int mask, int width = 32) {
  return emulation::shuffle(lanes, value, emulation::lane() ^ mask, width);
}
template <typename T>
T __shfl_down_sync(unsigned lanes, T value, unsigned delta, int width = 32) {
  return emulation::shuffle(lanes, value, emulation::lane() + static_cast<int>(delta), width);
}
template <typename T>
T __shfl_up_sync(unsigned lanes, T value, unsigned delta, int width = 32) {
  return emulation::shuffle(lanes, value, emulation::lane() - static_cast<int>(delta), width);
}
inline int __all_sync(unsigned lanes, int predicate) {
  return emulation::reduce_lanes(lanes, predicate != 0, [](unsigned a, unsigned b) { return a & b; });
}
inline unsigned __reduce_max_sync(unsigned lanes, unsigned value) {
  return emulation::reduce_lanes(lanes, value, [](unsigned a, unsigned b) { return std::max(a, b); });
}
inline unsigned __reduce_min_sync(unsigned lanes, unsigned value) {
  return emulation::reduce_lanes(lanes, value, [](unsigned a, unsigned b) { return std::min(a, b); });
}
inline unsigned __reduce_add_sync(unsigned lanes, unsigned value) {
  return emulation::reduce_lanes(lanes, value, [](unsigned a, unsigned b) { return a + b; });
}
inline void atomicMax(unsigned* target, unsigned value) { *target = std::max(*target, value); }
inline void atomicMin(unsigned* target, unsigned value) { *target = std::min(*target, value); }
