#pragma once

#include "conv/quantization.h"
#include "conv/small_floats.h"

namespace convswap {

// accumulators (16x8) += a (16x16, row-major) * b (16x8, column-major), by one warp; needs compute capability
// 8.0. A 32-bit word holds two neighbours along k. With g = lane / 4 and t = lane % 4, a0 to a3 hold (row g,
// word t), (g + 8, t), (g, t + 4), (g + 8, t + 4); b0 and b1 (word t, column g), (t + 4, g); accumulators
// (row g, column 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1). Products are exact; accumulators are float32
// and truncated.
template <typename Operand>
__device__ inline void mma_m16n8k16(float (&accumulators)[4], unsigned a0, unsigned a1, unsigned a2,
                                    unsigned a3, unsigned b0, unsigned b1);

template <>
__device__ inline void mma_m16n8k16<Float16>(float (&accumulators)[4], unsigned a0, unsigned a1, unsigned a2,
                                             unsigned a3, unsigned b0, unsigned b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(accumulators[0]), "+f"(accumulators[1]), "+f"(accumulators[2]), "+f"(accumulators[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

template <>
__device__ inline void mma_m16n8k16<BFloat16>(float (&accumulators)[4], unsigned a0, unsigned a1, unsigned a2,
                                              unsigned a3, unsigned b0, unsigned b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(accumulators[0]), "+f"(accumulators[1]), "+f"(accumulators[2]), "+f"(accumulators[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// The same for codes, 32 along K, by int8 weights: a word has four of them.
template <typename Code>
__device__ inline void mma_m16n8k32(int (&sums)[4], const unsigned (&a)[4], const unsigned (&b)[2]);

template <>
__device__ inline void mma_m16n8k32<Int8>(int (&sums)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+r"(sums[0]), "+r"(sums[1]), "+r"(sums[2]), "+r"(sums[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
template <>
__device__ inline void mma_m16n8k32<UInt8>(int (&sums)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+r"(sums[0]), "+r"(sums[1]), "+r"(sums[2]), "+r"(sums[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// The same for 8 rows, 16 along K, and for compute capability 7.5: a (8x16) and b (16x8) are a word each, and
// the sums those of (row g, column 2t) and (g, 2t + 1).
template <typename Code>
__device__ inline void mma_m8n8k16(int& first, int& second, unsigned a, unsigned b);

template <>
__device__ inline void mma_m8n8k16<Int8>(int& first, int& second, unsigned a, unsigned b) {
  asm("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0, %1}, {%2}, {%3}, {%0, %1};"
      : "+r"(first), "+r"(second)
      : "r"(a), "r"(b));
}
template <>
__device__ inline void mma_m8n8k16<UInt8>(int& first, int& second, unsigned a, unsigned b) {
  asm("mma.sync.aligned.m8n8k16.row.col.s32.u8.s8.s32 {%0, %1}, {%2}, {%3}, {%0, %1};"
      : "+r"(first), "+r"(second)
      : "r"(a), "r"(b));
}

// mma_m16n8k16 with half the depth: a (16x8) is a0 and a1, b (8x8) is b0. Of Float16 also for compute
// capability 7.5.
template <typename Operand>
__device__ inline void mma_m16n8k8(float (&accumulators)[4], unsigned a0, unsigned a1, unsigned b0);

template <>
__device__ inline void mma_m16n8k8<Float16>(float (&accumulators)[4], unsigned a0, unsigned a1, unsigned b0) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
      : "+f"(accumulators[0]), "+f"(accumulators[1]), "+f"(accumulators[2]), "+f"(accumulators[3])
      : "r"(a0), "r"(a1), "r"(b0));
}

template <>
__device__ inline void mma_m16n8k8<BFloat16>(float (&accumulators)[4], unsigned a0, unsigned a1,
                                             unsigned b0) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, "
      "%3};"
      : "+f"(accumulators[0]), "+f"(accumulators[1]), "+f"(accumulators[2]), "+f"(accumulators[3])
      : "r"(a0), "r"(a1), "r"(b0));
}

// Rounds to TF32 (10 mantissa bits), to nearest, ties away from zero.
__device__ inline float round_to_tf32(float value) {
  unsigned bits;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(value));
  return __uint_as_float(bits);
}

// accumulators (16x8) += a (16x8, row-major) * b (8x8, column-major), by one warp; needs compute capability
// 8.0. Operands are rounded to TF32 beforehand. With g = lane / 4 and t = lane % 4, a[0] to a[3] are (row g,
// column t), (g + 8, t), (g, t + 4), (g + 8, t + 4); b[0] and b[1] (row t, column g), (t + 4, g);
// accumulators (row g, column 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1).
__device__ inline void mma_m16n8k8_tf32(float (&accumulators)[4], const float (&a)[4], const float (&b)[2]) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(accumulators[0]), "+f"(accumulators[1]), "+f"(accumulators[2]), "+f"(accumulators[3])
      : "r"(__float_as_uint(a[0])), "r"(__float_as_uint(a[1])), "r"(__float_as_uint(a[2])),
        "r"(__float_as_uint(a[3])), "r"(__float_as_uint(b[0])), "r"(__float_as_uint(b[1])));
}

}  // namespace convswap
