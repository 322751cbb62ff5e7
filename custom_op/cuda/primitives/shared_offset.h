#pragma once

#include "conv/host_device.h"

namespace convswap {

// Where a part of a block's shared memory begins, which is one or several T; the host decides (SharedLayout).
template <typename T>
struct Offset {
  int bytes = 0;

  CONVSWAP_HOST_DEVICE T* in(unsigned char* shared) const { return reinterpret_cast<T*>(shared + bytes); }
};

}  // namespace convswap
