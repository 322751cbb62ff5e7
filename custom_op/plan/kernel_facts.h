#pragma once

#include <cstdint>
#include <string>

namespace convswap {

// A kernel that a plan starts: what the compiler gave it, and its launch.
struct KernelFacts {
  std::string name;
  int registers = 0;          // of a thread
  int64_t spilled_bytes = 0;  // of a thread: what did not fit into its registers, or was indexed at run time
  int64_t shared_bytes = 0;   // of a block
  int64_t threads = 0;        // of a block
  int64_t blocks = 0;
};

}  // namespace convswap
