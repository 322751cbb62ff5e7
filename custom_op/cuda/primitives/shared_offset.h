#pragma once

namespace convswap {

// Where a part of a block's shared memory begins, which is one or several T; the host decides (SharedLayout).
template <typename T>
struct Offset {
  int bytes = 0;

#ifdef __CUDACC__
  __device__ T* in(unsigned char* shared) const { return reinterpret_cast<T*>(shared + bytes); }
#endif
};

}  // namespace convswap
