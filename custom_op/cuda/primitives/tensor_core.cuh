#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace convswap {

// sums (16x8) += a (16x16, row-major) * b (16x8, column-major), by one warp; needs compute capability 8.0. A
// word holds two neighbours along the depth. With g = lane / 4 and t = lane % 4, a0 to a3 hold (row g, word
// t), (g + 8, t), (g, t + 4), (g + 8, t + 4); b0 and b1 (word t, column g), (t + 4, g); sums (row g, column
// 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1). Products are exact and sums float32, truncated.
template <typename Number>
__device__ inline void multiply_add_16_deep(float (&sums)[4], unsigned a0, unsigned a1, unsigned a2,
                                            unsigned a3, unsigned b0, unsigned b1);

template <>
__device__ inline void multiply_add_16_deep<__half>(float (&sums)[4], unsigned a0, unsigned a1, unsigned a2,
                                                    unsigned a3, unsigned b0, unsigned b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

template <>
__device__ inline void multiply_add_16_deep<__nv_bfloat16>(float (&sums)[4], unsigned a0, unsigned a1,
                                                           unsigned a2, unsigned a3, unsigned b0,
                                                           unsigned b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// The same of half the depth: a (16x8) is a0 and a1, b (8x8) is b0.
template <typename Number>
__device__ inline void multiply_add_8_deep(float (&sums)[4], unsigned a0, unsigned a1, unsigned b0);

template <>
__device__ inline void multiply_add_8_deep<__half>(float (&sums)[4], unsigned a0, unsigned a1, unsigned b0) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a0), "r"(a1), "r"(b0));
}

template <>
__device__ inline void multiply_add_8_deep<__nv_bfloat16>(float (&sums)[4], unsigned a0, unsigned a1,
                                                          unsigned b0) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, "
      "%3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a0), "r"(a1), "r"(b0));
}

}  // namespace convswap
