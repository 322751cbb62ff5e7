#include "cuda/tutorial/lab/fill.h"

#include "cuda/host/kernels.h"
#include "cuda/host/launch.h"

namespace convswap::lab {
namespace {

constexpr char kKernel[] = "lab::fill_shared_memory";
const KnownKernels known({.header = "cuda/tutorial/lab/kernel.cuh", .instances = {kKernel}});

// A block takes all that it may have, so that each multiprocessor holds one at a time; several rounds of
// blocks reach them all.
constexpr unsigned kThreads = 256, kRounds = 4;

}  // namespace

void fill_shared_memory(const Device& device, void* stream) {
  const DeviceGuard guard(device.index);
  int words = device.shared_memory_per_block / static_cast<int>(sizeof(unsigned));
  Launch launch;
  launch.kernel = find_kernel(kKernel, device, sizeof words);
  launch.grid = {kRounds * static_cast<unsigned>(device.multiprocessors)};
  launch.block = {kThreads};
  launch.shared_bytes = static_cast<std::size_t>(device.shared_memory_per_block);
  allow_shared_memory(launch.kernel, device.shared_memory_per_block);
  void* arguments[] = {&words};
  enqueue(launch, stream, arguments);
}

}  // namespace convswap::lab
