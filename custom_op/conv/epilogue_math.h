#pragma once

// The arithmetic of an epilogue, the same on the CPU and on the card. Sum is the accumulator type: float, or
// double for float64 data.

#include "conv/epilogue.h"

namespace convswap {

// Functions of <cmath>, overloaded for float and double under names that NVRTC knows, too.
namespace elementary {
CONVSWAP_HOST_DEVICE inline float exp(float x) { return ::expf(x); }
CONVSWAP_HOST_DEVICE inline double exp(double x) { return ::exp(x); }
CONVSWAP_HOST_DEVICE inline float expm1(float x) { return ::expm1f(x); }
CONVSWAP_HOST_DEVICE inline double expm1(double x) { return ::expm1(x); }
CONVSWAP_HOST_DEVICE inline float tanh(float x) { return ::tanhf(x); }
CONVSWAP_HOST_DEVICE inline double tanh(double x) { return ::tanh(x); }
CONVSWAP_HOST_DEVICE inline float erf(float x) { return ::erff(x); }
CONVSWAP_HOST_DEVICE inline double erf(double x) { return ::erf(x); }

// Returns 1 / x for x >= 1, also for infinity. On the card a division takes about ten instructions and this
// reciprocal one. Its error is at most 1 ulp, and subnormal results are flushed to 0.
CONVSWAP_HOST_DEVICE inline float reciprocal(float x) {
#ifdef __CUDA_ARCH__
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
#else
  return 1 / x;
#endif
}
CONVSWAP_HOST_DEVICE inline double reciprocal(double x) { return 1 / x; }

#ifdef __CUDA_ARCH__
// Returns 2^x with a relative error of at most 2^-22; subnormal results are flushed to 0.
__device__ inline float exp2(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}
#endif

// On the card four instructions, where expf made it ten. Rounding the exponent gives the power a relative
// error of at most 7.3e-8 |x|, which matters for negative x only, where the power is larger than 1.
CONVSWAP_HOST_DEVICE inline float sigmoid(float x) {
#ifdef __CUDA_ARCH__
  return reciprocal(1 + exp2(x * -1.44269504f));
#else
  return reciprocal(1 + exp(-x));
#endif
}
CONVSWAP_HOST_DEVICE inline double sigmoid(double x) { return reciprocal(1 + exp(-x)); }

// x times the distribution function of the normal distribution. On the card by formula 7.1.26 of Abramowitz
// and Stegun, "Handbook of Mathematical Functions" (1964), whose erf is off by at most 1.5e-7: 15
// instructions without a branch.
CONVSWAP_HOST_DEVICE inline float gelu(float x) {
#ifdef __CUDA_ARCH__
  const float z = fabsf(x) * 0.70710678f;
  const float t = reciprocal(1 + 0.3275911f * z);
  // erfc(z) / 2
  const float tail =
      t * (0.127414796f + t * (-0.142248368f + t * (0.710706871f + t * (-0.726576014f + t * 0.530702715f)))) *
      exp2(z * z * -1.44269504f);
  return x * (x < 0 ? tail : 1 - tail);
#else
  return 0.5f * x * (1 + erf(x * 0.70710678f));
#endif
}
CONVSWAP_HOST_DEVICE inline double gelu(double x) { return 0.5 * x * (1 + erf(x * 0.70710678118654752)); }
}  // namespace elementary

// Applies the activation; alpha and beta as in enum Activation. NaN stays NaN: every comparison with it is
// false.
template <typename Sum>
CONVSWAP_HOST_DEVICE inline Sum activate(Activation activation, Sum alpha, Sum beta, Sum x) {
  // ONNX's Clip: the maximum wins if it is below the minimum.
  const auto clip = [](Sum value, Sum lower, Sum upper) {
    value = value < lower ? lower : value;
    return value > upper ? upper : value;
  };
  switch (activation) {
    case Activation::none:
      return x;
    case Activation::relu:
      return x < 0 ? Sum(0) : x;
    case Activation::leaky_relu:
      return x < 0 ? alpha * x : x;
    case Activation::clip:
      return clip(x, alpha, beta);
    case Activation::tanh:
      return elementary::tanh(x);
    case Activation::sigmoid:
      return elementary::sigmoid(x);
    case Activation::hard_sigmoid:
      return clip(alpha * x + beta, 0, 1);
    case Activation::hard_swish:
      return x * clip(x * (Sum(1) / 6) + Sum(0.5), 0, 1);
    case Activation::silu:
      return x * elementary::sigmoid(x);
    case Activation::gelu:
      return elementary::gelu(x);
    case Activation::gelu_tanh:
      return Sum(0.5) * x *
             (1 + elementary::tanh(Sum(0.79788456080286536) * (x + Sum(0.044715) * x * x * x)));
    case Activation::elu:
      return x < 0 ? alpha * elementary::expm1(x) : x;
  }
  return x;
}

// True for a monotonic activation: max pooling may then come before it.
CONVSWAP_HOST_DEVICE inline bool is_increasing(const Epilogue& epilogue) {
  switch (epilogue.activation) {
    case Activation::none:
    case Activation::relu:
    case Activation::clip:
    case Activation::tanh:
    case Activation::sigmoid:
      return true;
    case Activation::leaky_relu:
    case Activation::hard_sigmoid:
      return epilogue.alpha > 0;  // times 0 an infinity is NaN
    case Activation::elu:
      return epilogue.alpha >= 0;
    default:
      return false;
  }
}

// The range of convolution outputs that a pool window covers along one axis, and the divisor of its average.
struct PoolWindow {
  int64_t begin, end, divisor;

  CONVSWAP_HOST_DEVICE PoolWindow(const Pool& pool, int axis, int64_t position, int64_t extent) {
    const int64_t first = position * pool.stride[axis] - pool.pad_begin[axis];
    const int64_t last = first + pool.kernel[axis];
    const int64_t padded = extent + pool.pad_end[axis];
    begin = first < 0 ? 0 : first;
    end = last < extent ? last : extent;
    // Positions beyond the padding do not count. Without ceil_mode a pool window reaches beyond the padding
    // only if it is larger than the padded image. ONNX Runtime then divides by the size of the whole pool
    // window.
    const int64_t counted_end = pool.rounds_up && last > padded ? padded : last;
    divisor = pool.counts_padding ? counted_end - first : end - begin;
  }
};

// Returns the maximum or the average of value_at(row, column) over a pool window.
template <typename Sum, typename ValueAt>
CONVSWAP_HOST_DEVICE inline Sum pooled(PoolKind kind, const PoolWindow& rows, const PoolWindow& columns,
                                       ValueAt value_at) {
  Sum result = kind == PoolKind::max ? -static_cast<Sum>(infinity()) : Sum(0);
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    for (int64_t column = columns.begin; column < columns.end; ++column) {
      const Sum value = value_at(row, column);
      if (kind == PoolKind::average) {
        result += value;
      } else if (value > result || value != value) {  // NaN propagates
        result = value;
      }
    }
  }
  return kind == PoolKind::average ? result / static_cast<Sum>(rows.divisor * columns.divisor) : result;
}

}  // namespace convswap
