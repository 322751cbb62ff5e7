#pragma once

// Epilogue of the CPU kernels, row by row: bias, residual and activation, then the pool of the rows that a
// task has computed.

#include <algorithm>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

#include "conv/arithmetic.h"
#include "conv/epilogue_math.h"
#include "conv/problem.h"
#include "conv/with_activation.h"
#include "cpu/activation_lanes.h"

namespace convswap {

// activate() with the vectorised tanh, sigmoid and SiLU.
template <Activation kActivation>
inline float vector_activate(float alpha, float beta, float x) {
  if constexpr (kActivation == Activation::tanh) return vector_tanh(x);
  if constexpr (kActivation == Activation::sigmoid) return vector_sigmoid(x);
  if constexpr (kActivation == Activation::silu) return vector_silu(x);
  return activate(kActivation, alpha, beta, x);
}

// Returns the vectorised kernel of an activation; null if there is none.
inline auto activation_kernel(const ActivationKernels& kernels, Activation activation) {
  switch (activation) {
    case Activation::tanh:
      return kernels.tanh;
    case Activation::sigmoid:
      return kernels.sigmoid;
    case Activation::silu:
      return kernels.silu;
    case Activation::hard_swish:
      return kernels.hard_swish;
    default:
      return static_cast<decltype(kernels.silu)>(nullptr);
  }
}

// Activates a row in place.
inline void activate_row(const Epilogue& epilogue, Activation activation, const ActivationKernels& kernels,
                         int64_t columns, float* values) {
  if (const auto kernel = activation_kernel(kernels, activation); kernel != nullptr) {
    return kernel(values, columns);
  }
  with_activation(activation, [&](auto constant) {
    for (int64_t i = 0; i < columns; ++i) {
      values[i] = vector_activate<decltype(constant)::value>(epilogue.alpha, epilogue.beta, values[i]);
    }
  });
}

// True if the activation is applied after the pool, to fewer values. A monotonic activation does not change
// which value is the maximum.
inline bool activates_after_pool(const Epilogue& epilogue) {
  return epilogue.pool.kind == PoolKind::max && is_increasing(epilogue);
}

// Rows of the convolution's output, and the rows of y that a task computes from them. The two differ if a
// pool follows.
struct RowBand {
  int64_t first_row, rows;
  int64_t first_result, results;

  RowBand(const ConvProblem& problem, int64_t first_result, int64_t results)
      : first_row(first_result), rows(results), first_result(first_result), results(results) {
    const Pool& pool = problem.epilogue.pool;
    if (pool.kind == PoolKind::none) return;
    first_row = PoolWindow(pool, 0, first_result, problem.output[1]).begin;
    rows = PoolWindow(pool, 0, first_result + results - 1, problem.output[1]).end - first_row;
  }
};

// Pools the columns of a row. `kStride` is the pool's stride if known at compile time, else 0. Pool windows
// that lie inside the row are computed side by side, as vectors. `combine` adds a value to the result of a
// pool window, which begins as `identity`.
template <int kStride, typename Combine>
void pool_columns_by(const Pool& pool, int64_t row_divisor, const float* values, int64_t width,
                     float* results, int64_t y_width, float identity, Combine combine) {
  const int64_t stride = kStride == 0 ? pool.stride[1] : kStride;
  const int64_t pad = pool.pad_begin[1], kernel = pool.kernel[1];
  const auto finish = [&](float result, int64_t divisor) {
    return pool.kind == PoolKind::average ? result / static_cast<float>(row_divisor * divisor) : result;
  };
  const auto pool_window = [&](int64_t q) {
    const PoolWindow columns(pool, 1, q, width);
    float result = identity;
    for (int64_t column = columns.begin; column < columns.end; ++column) {
      result = combine(result, values[column]);
    }
    results[q] = finish(result, columns.divisor);
  };
  const int64_t begin = std::min(y_width, ceil_divide(pad, stride));
  const int64_t last = width + pad - kernel;  // last column, with padding, where a pool window may begin
  const int64_t end = last < 0 ? begin : std::clamp(last / stride + 1, begin, y_width);
  for (int64_t q = 0; q < begin; ++q) pool_window(q);
  const float* const from = values + begin * stride - pad;
  for (int64_t q = begin; q < end; ++q) results[q] = combine(identity, from[(q - begin) * stride]);
  for (int64_t tap = 1; tap < kernel; ++tap) {
    for (int64_t q = begin; q < end; ++q) results[q] = combine(results[q], from[(q - begin) * stride + tap]);
  }
  for (int64_t q = begin; q < end; ++q) results[q] = finish(results[q], kernel);
  for (int64_t q = end; q < y_width; ++q) pool_window(q);
}

template <typename... Arguments>
void pool_columns(const Pool& pool, Arguments... arguments) {
  if (pool.stride[1] == 1) return pool_columns_by<1>(pool, arguments...);
  if (pool.stride[1] == 2) return pool_columns_by<2>(pool, arguments...);
  pool_columns_by<0>(pool, arguments...);
}

// Writes the band's rows of y for one filter. Reduces the rows of a pool window first, all columns at once,
// then the columns of the result. `combine` and `identity` are those of pool_columns_by.
template <typename T, typename Combine>
void pool_rows_by(const ConvProblem& problem, const ActivationKernels& kernels, const RowBand& band,
                  const float* unpooled, T* y, float identity, Combine combine) {
  const Epilogue& epilogue = problem.epilogue;
  const Pool& pool = epilogue.pool;
  const int64_t width = problem.output[2], y_width = problem.result[2];
  thread_local std::vector<float> column_values, results;
  column_values.resize(static_cast<size_t>(width));
  results.resize(static_cast<size_t>(y_width));
  for (int64_t p = band.first_result; p < band.first_result + band.results; ++p, y += y_width) {
    const PoolWindow rows(pool, 0, p, problem.output[1]);
    std::fill(column_values.begin(), column_values.end(), identity);
    for (int64_t row = rows.begin; row < rows.end; ++row) {
      const float* const values = unpooled + (row - band.first_row) * width;
      for (int64_t column = 0; column < width; ++column) {
        column_values[column] = combine(column_values[column], values[column]);
      }
    }
    pool_columns(pool, rows.divisor, column_values.data(), width, results.data(), y_width, identity, combine);
    if (activates_after_pool(epilogue)) {
      activate_row(epilogue, epilogue.activation, kernels, y_width, results.data());
    }
    for (int64_t q = 0; q < y_width; ++q) y[q] = static_cast<T>(results[q]);
  }
}

// Writes the band's rows of y for one filter with the problem's pool.
template <typename T>
void pool_rows(const ConvProblem& problem, const ActivationKernels& kernels, const RowBand& band,
               const float* unpooled, T* y) {
  if (problem.epilogue.pool.kind == PoolKind::max) {
    pool_rows_by(problem, kernels, band, unpooled, y, -std::numeric_limits<float>::infinity(),
                 [](float max, float value) {
                   return value > max || value != value ? value : max;  // NaN propagates
                 });
  } else {
    pool_rows_by(problem, kernels, band, unpooled, y, 0.0f,
                 [](float sum, float value) { return sum + value; });
  }
}

// The activation before a pool, split into a clamp, which the convolution kernels apply, and a `deferred`
// activation, which a pass over the stored row applies. A residual precedes the activation, so the kernels
// clamp only if there is no residual or they add it themselves (`adds_residual`).
struct SplitActivation {
  bool clips = false;
  float lower = 0, upper = 0;  // the clamp's bounds
  Activation deferred = Activation::none;

  explicit SplitActivation(const Epilogue& epilogue, bool adds_residual = false) {
    deferred = activates_after_pool(epilogue) ? Activation::none : epilogue.activation;
    if (epilogue.has_residual && !adds_residual) return;
    if (deferred == Activation::relu) {
      clips = true, lower = 0, upper = std::numeric_limits<float>::infinity();
    } else if (deferred == Activation::clip) {
      clips = true, lower = epilogue.alpha, upper = epilogue.beta;
    }
    if (clips) deferred = Activation::none;
  }
};

// Rows at a distance of `pitch` elements.
template <typename Element>
struct Rows {
  Element* first;
  int64_t pitch;
};

// Adds the bias and the residual, which may be null, to a row; then applies the activation.
template <typename T, typename Target>
void finish_row(const Epilogue& epilogue, Activation activation, const ActivationKernels& kernels,
                int64_t columns, const float* values, float bias, const T* residual, Target* target) {
  if constexpr (std::is_same_v<Target, float>) {
    if (const auto kernel = activation_kernel(kernels, activation); kernel != nullptr) {
      for (int64_t i = 0; i < columns; ++i) target[i] = values[i] + bias;
      for (int64_t i = 0; residual != nullptr && i < columns; ++i) {
        target[i] += static_cast<float>(residual[i]);
      }
      kernel(target, columns);
      return;
    }
  }
  with_activation(activation, [&](auto constant) {
    for (int64_t i = 0; i < columns; ++i) {
      float value = values[i] + bias;
      if (residual != nullptr) value += static_cast<float>(residual[i]);
      value = vector_activate<decltype(constant)::value>(epilogue.alpha, epilogue.beta, value);
      target[i] = static_cast<Target>(value);
    }
  });
}

// finish_row for several rows without a bias; residual.first may be null.
template <typename T, typename Target>
void finish_rows(const Epilogue& epilogue, Activation activation, const ActivationKernels& kernels,
                 int64_t rows, int64_t columns, Rows<const float> values, Rows<const T> residual,
                 Rows<Target> target) {
  for (int64_t row = 0; row < rows; ++row) {
    const T* const residual_row = residual.first == nullptr ? nullptr : residual.first + row * residual.pitch;
    finish_row(epilogue, activation, kernels, columns, values.first + row * values.pitch, 0.0f, residual_row,
               target.first + row * target.pitch);
  }
}

}  // namespace convswap
