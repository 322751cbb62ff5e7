#pragma once

#include <cstddef>
#include <functional>

namespace convswap {

// Copies `bytes` of device memory into `constants`, a __constant__ array of the current device, and then
// calls `launch`, which enqueues what reads it on the same stream. A device has one such array for all
// sessions, so that whoever comes next, on whatever stream, has his copy wait until those kernels are done.
// Throws std::runtime_error, also while the stream is captured into a CUDA graph: its replays would wait for
// nobody.
void with_constants(void* constants, const void* source, std::size_t bytes, void* stream,
                    const std::function<void()>& launch);

}  // namespace convswap
