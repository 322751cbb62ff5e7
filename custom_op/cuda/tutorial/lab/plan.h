#pragma once

// How a user's kernel is compiled and started, for the algorithm `lab` and for tools, and what `convswap lab`
// starts before it.

#include "cuda/host/launch.h"
#include "cuda/runtime/kernel_code.h"
#include "cuda/tutorial/lab/source.h"
#include "plan/device.h"

namespace convswap::lab {

KernelRequest request_for(const Source& source, int compute_capability);

// The kernel, compiled and loaded, and its launch for the problem. Throws InvalidArgument where the launch
// line gives none that the card takes, std::runtime_error with the compiler's words where it refuses the
// file.
Launch launch_of(const Source& source, const ConvProblem& problem, const Device& device);

// Leaves NaN in all shared memory of the card, in the stream's turn. Throws where the card refuses.
void fill_shared_memory(const Device& device, void* stream);

}  // namespace convswap::lab
