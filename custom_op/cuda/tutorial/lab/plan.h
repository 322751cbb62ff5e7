#pragma once

// Compilation and launch of a user's kernel, for the algorithm `lab` and for tools.

#include "cuda/host/launch.h"
#include "cuda/runtime/kernel_code.h"
#include "cuda/tutorial/lab/source.h"
#include "plan/device.h"

namespace convswap::lab {

KernelRequest request_for(const Source& source, int compute_capability);

// Compiles and loads the kernel, and returns its launch for the problem. Throws InvalidArgument if the launch
// line has no valid launch for the card, and std::runtime_error with the compiler's messages if the file does
// not compile.
Launch launch_of(const Source& source, const ConvProblem& problem, const Device& device);

// Enqueues a kernel that fills the shared memory of all multiprocessors with NaN. `convswap lab` runs it
// before a user's kernel. Throws if the launch is refused.
void fill_shared_memory(const Device& device, void* stream);

}  // namespace convswap::lab
