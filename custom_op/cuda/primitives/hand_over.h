#pragma once

namespace convswap {

// In shared memory: where some threads tell others that something is theirs now; see hand_over.cuh.
struct alignas(8) HandOver {
  unsigned long long state;
};

}  // namespace convswap
