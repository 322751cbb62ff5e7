#pragma once

namespace convswap {

// In shared memory: counts the bytes that bulk copies bring there; see bulk_load.cuh.
struct alignas(8) CopyBarrier {
  unsigned long long state;
};

}  // namespace convswap
