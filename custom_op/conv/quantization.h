#pragma once

// Convolutions of quantised data: codes in 8 bits, each of which stands for a number,
// scale * (code - zero point).

#include "conv/epilogue.h"
#include "conv/host_device.h"

namespace convswap {

// Codes, by the names that kernel instances have.
using Int8 = signed char;
using UInt8 = unsigned char;
constexpr int kCodeCount = 256;  // of a type

// How the sums of a convolution become codes or numbers. Every step is one float32 operation, rounded once:
//
//   s = sum over channels and taps of (x - x_zero_point) * w, + bias      int32, exact; padding adds nothing
//   v = s * scale[filter], + offset[filter]
//   v = sum_scale * (code of v at sum_zero_point - sum_zero_point)         if rounds_sum
//       or sum_values[code of v at sum_zero_point - the least code]        if has_sum_values, too
//   v = v + residual_scale * (residual - residual_zero_point)
//   v = pool(activation(v))
//   y = the code of v * y_factor at y_zero_point, or v
//
// The code of v at a zero point is v rounded to the nearest integer, half to even, plus the zero point,
// clamped to the range of the codes. `sum_scale` to `residual_zero_point` have their defaults where they are
// not used, so that equal problems compare equal.
struct Quantization {
  int x_zero_point = 0;
  bool has_offset = false;
  bool rounds_sum = false;  // the codes between have the type of x
  bool has_sum_values = false;
  float sum_scale = 1;
  int sum_zero_point = 0;
  float residual_scale = 1;
  int residual_zero_point = 0;
  float y_factor = 1;
  int y_zero_point = 0;

  bool operator==(const Quantization&) const = default;
};

namespace requantize {

// Products and sums that no compiler contracts into one operation.
CONVSWAP_HOST_DEVICE inline float multiply(float a, float b) {
#ifdef __CUDA_ARCH__
  return __fmul_rn(a, b);
#else
  return a * b;
#endif
}
CONVSWAP_HOST_DEVICE inline float add(float a, float b) {
#ifdef __CUDA_ARCH__
  return __fadd_rn(a, b);
#else
  return a + b;
#endif
}

// A float between -2^22 and 2^22, rounded half to even.
CONVSWAP_HOST_DEVICE inline int round_to_int(float value) {
#ifdef __CUDA_ARCH__
  return __float2int_rn(value);
#else
  return static_cast<int>(::nearbyintf(value));
#endif
}

template <typename Code>
inline constexpr int kMinCode = Code(-1) < Code(0) ? -128 : 0;

// The code of a value, in steps, at a zero point, between `lower` and the 255 codes above it. NaN has the
// lowest code.
CONVSWAP_HOST_DEVICE inline int code_of(float value, int zero_point, int lower) {
  const float least = static_cast<float>(lower - zero_point);
  const float most = static_cast<float>(lower + 255 - zero_point);
  value = value > least ? value : least;
  value = value < most ? value : most;
  return round_to_int(value) + zero_point;
}

// The number v before the residual, of int32 sum, scale and offset of its filter. X is the type of x; the
// offset is 0 if there is none, and `sum_values` null.
template <typename X>
CONVSWAP_HOST_DEVICE inline float number_of_sum(const Quantization& quantization, int sum, float scale,
                                                float offset, const float* sum_values) {
  float value = multiply(static_cast<float>(sum), scale);
  if (quantization.has_offset) value = add(value, offset);
  if (!quantization.rounds_sum) return value;
  const int code = code_of(value, quantization.sum_zero_point, kMinCode<X>);
  if (quantization.has_sum_values) return sum_values[code - kMinCode<X>];
  return multiply(static_cast<float>(code - quantization.sum_zero_point), quantization.sum_scale);
}

// `value` plus the number of a residual's code.
CONVSWAP_HOST_DEVICE inline float plus_residual(const Quantization& quantization, float value, int code) {
  return add(value, multiply(static_cast<float>(code - quantization.residual_zero_point),
                             quantization.residual_scale));
}

// The code of y, whose lowest code is `lower`.
CONVSWAP_HOST_DEVICE inline int result_code(const Quantization& quantization, float value, int lower) {
  return code_of(multiply(value, quantization.y_factor), quantization.y_zero_point, lower);
}

}  // namespace requantize
}  // namespace convswap
