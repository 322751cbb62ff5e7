#pragma once

namespace convswap {

// Rounds to TF32's 10 mantissa bits, to nearest. The tensor core alone would truncate, which biases sums.
__device__ inline unsigned round_to_tf32(float value) {
  unsigned rounded;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(rounded) : "f"(value));
  return rounded;
}

// sums (16x8) += a (16x8, row-major) * b (8x8, column-major), by one warp; needs compute capability 8.0. With
// g = lane / 4 and t = lane % 4, a holds (row g, k t), (g + 8, t), (g, t + 4), (g + 8, t + 4); b holds
// (k t, column g), (t + 4, g); sums holds (row g, column 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1).
__device__ inline void multiply_add_tf32(float (&sums)[4], uint4 a, unsigned b0, unsigned b1) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}

}  // namespace convswap
