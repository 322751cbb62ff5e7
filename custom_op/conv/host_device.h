#pragma once

// Definitions for code that both the host compiler and NVRTC compile. NVRTC has no standard headers, so this
// header gives both compilers the few library names that such code uses. NVRTC runs with -default-device:
// functions without a specifier are device functions.

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

// A compile-time value as a type, like std::integral_constant.
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
