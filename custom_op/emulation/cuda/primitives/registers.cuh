#pragma once

namespace convswap {

inline unsigned optimization_barrier(unsigned value) { return value; }
template <typename T>
T* optimization_barrier_global(T* address) {
  return address;
}

template <int kRegisters>
void setmaxnreg_dec() {}
template <int kRegisters>
void setmaxnreg_inc() {}

}  // namespace convswap
