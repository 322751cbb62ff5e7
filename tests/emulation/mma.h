#pragma once

// CUDA's <mma.h> as far as the ladder uses it. Every lane holds the whole of a fragment, and the lanes meet
// where the hardware takes them together.

#include <cstdint>

#include "cuda_emulation.h"

namespace nvcuda::wmma {

struct matrix_a {};
struct matrix_b {};
struct accumulator {};
struct row_major {};
namespace precision {
struct tf32 {};
}  // namespace precision
enum layout_t { mem_row_major };

template <typename Use, int kM, int kN, int kK>
constexpr int kRows = std::is_same_v<Use, matrix_b> ? kK : kM;
template <typename Use, int kM, int kN, int kK>
constexpr int kColumns = std::is_same_v<Use, matrix_a> ? kK : kN;

template <typename Use, int kM, int kN, int kK, typename Element, typename Layout = void>
struct fragment {
  float at[kRows<Use, kM, kN, kK>][kColumns<Use, kM, kN, kK>];
};

// To 10 bits after the point, halves away from zero.
inline float __float_to_tf32(float value) {
  const unsigned bits = __float_as_uint(value);
  return std::isfinite(value) ? __uint_as_float((bits + 0x1000u) & ~0x1fffu) : value;
}

inline void check_aligned(const void* pointer, unsigned pitch) {
  if (reinterpret_cast<uintptr_t>(pointer) % 32 != 0 || pitch % 4 != 0) {
    emulation::fail("a fragment that is not aligned");
  }
}

template <typename Fragment>
void fill_fragment(Fragment& fragment, float value) {
  for (auto& row : fragment.at) {
    for (float& own : row) own = value;
  }
}

template <typename Fragment>
void load_matrix_sync(Fragment& fragment, const float* from, unsigned pitch) {
  check_aligned(from, pitch);
  emulation::meet_warp();
  for (auto& row : fragment.at) {
    int column = 0;
    for (float& own : row) own = from[column++];
    from += pitch;
  }
}

// The hardware would cut off what is not rounded to TF32, which biases the sums.
inline float checked(float value) {
  if (std::isfinite(value) && (__float_as_uint(value) & 0x1fffu) != 0) {
    emulation::fail("an operand that is not rounded to TF32");
  }
  return value;
}

template <typename Sums, typename A, typename B>
void mma_sync(Sums& sums, const A& a, const B& b, const Sums& before) {
  emulation::meet_warp();
  for (int i = 0; i < 16; ++i) {
    for (int j = 0; j < 16; ++j) {
      float sum = before.at[i][j];
      for (int m = 0; m < 8; ++m) sum += checked(a.at[i][m]) * checked(b.at[m][j]);
      sums.at[i][j] = sum;
    }
  }
}

template <typename Sums>
void store_matrix_sync(float* to, const Sums& sums, unsigned pitch, layout_t) {
  check_aligned(to, pitch);
  emulation::meet_warp();
  for (const auto& row : sums.at) {
    int column = 0;
    for (const float own : row) to[column++] = own;
    to += pitch;
  }
}

}  // namespace nvcuda::wmma
