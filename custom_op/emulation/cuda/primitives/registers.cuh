#pragma once

namespace convswap {

inline unsigned computed_here(unsigned value) { return value; }
template <typename T>
T* global_computed_here(T* address) {
  return address;
}

template <int kRegisters>
void leave_registers() {}
template <int kRegisters>
void take_registers() {}

}  // namespace convswap
