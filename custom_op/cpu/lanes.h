#pragma once

#include <cstdint>

#ifdef __AVX2__
#include <immintrin.h>
#endif

// Vectors of floats. Like position_lanes_kernel.h, this header is compiled once per instruction set. It
// includes no header with inline functions, except the compiler's intrinsics, which are always inlined.

namespace convswap {
namespace {

template <int kLanes>
struct Lanes {
  typedef float Vector __attribute__((vector_size(kLanes * sizeof(float))));
  typedef int32_t Indices __attribute__((vector_size(kLanes * sizeof(int32_t))));
  typedef float Unaligned __attribute__((vector_size(kLanes * sizeof(float)), aligned(4), may_alias));

  static Vector load(const float* from) { return *reinterpret_cast<const Unaligned*>(from); }
  static void store(float* to, const Vector& values) { *reinterpret_cast<Unaligned*>(to) = values; }
};

// Clamps to [lower, upper]; NaN stays NaN.
template <int kLanes>
inline typename Lanes<kLanes>::Vector clipped(typename Lanes<kLanes>::Vector value, float lower,
                                              float upper) {
  typedef typename Lanes<kLanes>::Vector Vector;
  value = value < lower ? lower - Vector{} : value;
  return value > upper ? upper - Vector{} : value;
}

// A mask of the lanes from `begin` to `end`; both may lie outside the vector. Masked-off lanes are neither
// read nor written.
template <int kLanes>
struct LaneMask {
  typedef Lanes<kLanes> L;
  int begin, end;

  LaneMask(int64_t begin, int64_t end) : begin(limit(begin)), end(limit(end)) {}

  static int limit(int64_t lane) { return lane < 0 ? 0 : lane > kLanes ? kLanes : static_cast<int>(lane); }

  // Loads the lanes, with zeros in the others.
  typename L::Vector load(const float* from) const {
#if defined(__AVX512F__)
    if constexpr (kLanes == 16) return _mm512_maskz_loadu_ps(mask(), from);
#elif defined(__AVX2__)
    if constexpr (kLanes == 8) {
      const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
      const __m256i from_begin = _mm256_cmpgt_epi32(lane, _mm256_set1_epi32(begin - 1));
      return _mm256_maskload_ps(
          from, _mm256_and_si256(from_begin, _mm256_cmpgt_epi32(_mm256_set1_epi32(end), lane)));
    }
#endif
    float values[kLanes] = {};
    for (int lane = begin; lane < end; ++lane) values[lane] = from[lane];
    return L::load(values);
  }

  void store(float* to, const typename L::Vector& value) const {
#if defined(__AVX512F__)
    if constexpr (kLanes == 16) return _mm512_mask_storeu_ps(to, mask(), value);
#endif
    float values[kLanes];
    L::store(values, value);
    for (int lane = begin; lane < end; ++lane) to[lane] = values[lane];
  }

#if defined(__AVX512F__)
  __mmask16 mask() const { return static_cast<__mmask16>((1u << end) - (1u << begin)); }
#endif
};

}  // namespace
}  // namespace convswap
