#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "plan/algorithm.h"

namespace convswap {

// Makes `device` current for the thread and puts the former one back: ONNX Runtime's threads serve several.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device);
  ~DeviceGuard();
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  void* former_ = nullptr;  // a context
  bool changed_ = false;
};

// How many blocks a grid has, or threads a block, along each axis.
struct Dim3 {
  unsigned x, y, z;

  constexpr Dim3(unsigned along_x = 1, unsigned along_y = 1, unsigned along_z = 1)
      : x(along_x), y(along_y), z(along_z) {}
  int64_t count() const { return int64_t{x} * y * z; }
};

// When a kernel starts: once the one before it in the stream has ended; or early, while that one comes to its
// end, so that the start costs no time of its own. An early kernel must begin with griddepcontrol_wait()
// (dependent_launch.cuh).
enum class Start { in_turn, early };
// What an early start saves on an H200, by which the estimates of all algorithms are less than what they were
// fitted to: 0.99 to 1.29 us over the course layers at batches 1, 8 and 64. Older cards' estimates are those
// of an H200 too, since they serve to compare algorithms.
constexpr double kEarlierNanoseconds = 1150;

// A kernel and how it is started.
struct Launch {
  const void* kernel = nullptr;  // of find_kernel: a device's
  Dim3 grid, block;
  std::size_t shared_bytes = 0;  // beside what the kernel declares
  Start start = Start::in_turn;
};

// Lets `kernel` use as much dynamic shared memory as a block of its device may have: above 48 KB it must be
// asked for. The limit belongs to the kernel, not to a launch, so one plan must not lower it for another.
void allow_shared_memory(const void* kernel, int bytes_per_block);

// How many blocks of the launch one multiprocessor holds at once.
int resident_blocks(const Launch& launch);

// Start::early for a kernel that begins so, where its code was compiled for cards that can wait (compute
// capability 9.0), else Start::in_turn.
Start earliest_start(const void* kernel);

// Starts the kernel on a stream of the current device and throws where that is refused. `arguments` points to
// a pointer for each of the kernel's parameters.
void enqueue(const Launch& launch, void* stream, void** arguments);

// What the driver says of the kernel, and the launch.
KernelFacts kernel_facts(std::string name, const Launch& launch);

}  // namespace convswap
