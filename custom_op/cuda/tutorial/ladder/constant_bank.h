#pragma once

#include <cstddef>
#include <functional>

namespace convswap {

// Copies `bytes` of device memory to `constants`, a __constant__ array of the current device, and then calls
// `launch`, which enqueues the kernels that read the array on the same stream. A device has one such array
// for all sessions, so the next call's copy, on any stream, waits for these kernels. Throws
// std::runtime_error if the driver reports an error, or if the stream is being captured into a CUDA graph:
// replays would not wait.
void with_constants(void* constants, const void* source, std::size_t bytes, void* stream,
                    const std::function<void()>& launch);

}  // namespace convswap
