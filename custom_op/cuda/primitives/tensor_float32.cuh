#pragma once

namespace convswap {

// The nearest number with the ten bits of mantissa of TF32, as a float32; of two the one away from zero.
__device__ inline unsigned round_to_tensor_float32(float value) {
  unsigned rounded;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(rounded) : "f"(value));
  return rounded;
}

}  // namespace convswap
