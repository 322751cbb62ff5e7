#pragma once

// For what both the host's compiler and NVRTC compile. The latter has no headers but ours, so that what they
// take from the standard library is here under names that both know; and it is told to take for the card
// what does not say where it belongs (-default-device).

#ifdef __CUDACC__
#define CONVSWAP_HOST_DEVICE __host__ __device__
#else
#define CONVSWAP_HOST_DEVICE
#endif

#ifndef __CUDACC_RTC__
#include <cmath>
#include <cstdint>
#endif

namespace convswap {

#ifdef __CUDACC_RTC__
using int64_t = long;
#endif

// A value that the compiler knows, as a type.
template <auto kValue>
struct Constant {
  static constexpr auto value = kValue;
};

template <typename A, typename B>
inline constexpr bool kAreSame = false;
template <typename A>
inline constexpr bool kAreSame<A, A> = true;

CONVSWAP_HOST_DEVICE inline float infinity() {
#ifdef __CUDA_ARCH__
  return __int_as_float(0x7f800000);
#else
  return INFINITY;
#endif
}

}  // namespace convswap
