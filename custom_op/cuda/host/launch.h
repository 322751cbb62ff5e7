#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "plan/algorithm.h"

namespace convswap {

// Makes `device` current for the thread and restores the previous context: ONNX Runtime's threads serve
// several devices.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device);
  ~DeviceGuard();
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  void* previous_ = nullptr;  // a CUcontext
  bool changed_ = false;
};

// Dimensions of a grid in blocks, or of a block in threads.
struct Dim3 {
  unsigned x, y, z;

  constexpr Dim3(unsigned along_x = 1, unsigned along_y = 1, unsigned along_z = 1)
      : x(along_x), y(along_y), z(along_z) {}
  // Number of blocks of the grid, or of threads of the block.
  int64_t total() const { return int64_t{x} * y * z; }
};

// When a kernel may start. `in_turn`: after the preceding kernel of the stream has ended. `early`: during the
// end of the preceding kernel (programmatic dependent launch), which hides the launch latency. An early
// kernel must begin with griddepcontrol_wait() (dependent_launch.cuh).
enum class Start { in_turn, early };

// A kernel and its launch configuration.
struct Launch {
  const void* kernel = nullptr;  // from find_kernel, for one device
  Dim3 grid, block;
  std::size_t shared_bytes = 0;  // dynamic shared memory
  Start start = Start::in_turn;
  unsigned cluster_blocks = 1;  // along x; see cluster.cuh
};

// Raises the kernel's limit of dynamic shared memory to the device's maximum per block; without it the limit
// is 48 KB. The limit belongs to the kernel, not to a launch, so no plan may lower it for another.
void allow_shared_memory(const void* kernel, int bytes_per_block);

// The number of the launch's blocks that one multiprocessor holds at once (occupancy).
int resident_blocks(const Launch& launch);

// Start::early if the kernel's code was compiled for compute capability 9.0 or newer, else Start::in_turn.
// The kernel must begin with griddepcontrol_wait().
Start earliest_start(const void* kernel);

// Launches the kernel on a stream of the current device. `arguments` holds a pointer to each kernel
// parameter. Throws std::runtime_error if the launch is refused.
void enqueue(const Launch& launch, void* stream, void** arguments);

// The kernel's attributes from the driver, and its launch configuration.
KernelFacts kernel_facts(std::string name, const Launch& launch);

}  // namespace convswap
