#pragma once

#include "conv/host_device.h"

namespace convswap {

// Byte offset of one or several T in a block's shared memory, assigned on the host by SharedLayout.
template <typename T>
struct Offset {
  int bytes = 0;

  CONVSWAP_HOST_DEVICE T* in(unsigned char* shared) const { return reinterpret_cast<T*>(shared + bytes); }
};

}  // namespace convswap
