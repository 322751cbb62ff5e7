#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

namespace convswap {

// Makes `device` current for the thread and puts the former one back: ONNX Runtime's threads serve several.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device);
  ~DeviceGuard();
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  int former_ = 0;
  bool changed_ = false;
};

// Lets `kernel` use as much dynamic shared memory as a block of the current device may have: above 48 KB it
// must be asked for. The limit belongs to the kernel, not to a launch, so one plan must not lower it for
// another.
void allow_shared_memory(const void* kernel, int bytes_per_block);

// How many blocks of `kernel` one multiprocessor of the current device holds at once.
int resident_blocks(const void* kernel, int threads, size_t shared_bytes);

// When a kernel starts: once the one before it in the stream has ended; or early, while that one comes to its
// end, so that the start costs no time of its own. An early kernel must begin with wait_for_kernels_before()
// (dependent_launch.cuh).
enum class Start { in_turn, early };
// What an early start saves on an H200, by which the estimates of all algorithms are less than what they were
// fitted to: 0.99 to 1.29 us over the course layers at batches 1, 8 and 64. Older cards' estimates are those
// of an H200 too, since they serve to compare algorithms.
constexpr double kEarlierNanoseconds = 1150;

// Start::early for a kernel that begins so, where its code was compiled for cards that can wait (compute
// capability 9.0), else Start::in_turn.
Start earliest_start(const void* kernel);

// Enqueues the kernel and throws where the launch is refused.
void launch(const void* kernel, dim3 grid, dim3 block, size_t shared_bytes, void* stream, void** arguments,
            Start start = Start::in_turn);

}  // namespace convswap
