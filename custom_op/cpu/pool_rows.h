#pragma once

// The pool that follows a convolution, of the rows that a task has computed.

#include <algorithm>
#include <limits>
#include <vector>

#include "conv/epilogue_math.h"
#include "conv/problem.h"
#include "conv/with_activation.h"
#include "cpu/activate.h"

namespace convswap {

// Whether the activation comes after the pool, of what a pool takes, which the activation leaves the largest.
inline bool activates_after_pool(const Epilogue& epilogue) {
  return epilogue.pool.kind == PoolKind::max && is_increasing(epilogue);
}

// Rows of the convolution's output and the rows of y that a task makes of them.
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

// Writes the band's rows of y, of one filter. `take` adds a value to what a window has come to, which begins
// as `nothing`. The rows of a window first, whole rows at once, then the columns of what they come to.
template <typename T, typename Take>
void pool_rows_by(const ConvProblem& problem, const RowBand& band, const float* unpooled, T* y, float nothing,
                  Take take) {
  const Epilogue& epilogue = problem.epilogue;
  const Pool& pool = epilogue.pool;
  const int64_t width = problem.output[2], y_width = problem.result[2];
  thread_local std::vector<float> column_values, results;
  column_values.resize(static_cast<size_t>(width));
  results.resize(static_cast<size_t>(y_width));
  for (int64_t p = band.first_result; p < band.first_result + band.results; ++p, y += y_width) {
    const PoolWindow rows(pool, 0, p, problem.output[1]);
    std::fill(column_values.begin(), column_values.end(), nothing);
    for (int64_t row = rows.begin; row < rows.end; ++row) {
      const float* const values = unpooled + (row - band.first_row) * width;
      for (int64_t column = 0; column < width; ++column) {
        column_values[column] = take(column_values[column], values[column]);
      }
    }
    for (int64_t q = 0; q < y_width; ++q) {
      const PoolWindow columns(pool, 1, q, width);
      float result = nothing;
      for (int64_t column = columns.begin; column < columns.end; ++column) {
        result = take(result, column_values[column]);
      }
      if (pool.kind == PoolKind::average) result /= static_cast<float>(rows.counted * columns.counted);
      results[q] = result;
    }
    const bool activates = activates_after_pool(epilogue);
    with_activation(activates ? epilogue.activation : Activation::none, [&](auto constant) {
      for (int64_t q = 0; q < y_width; ++q) {
        y[q] = static_cast<T>(
            vector_activate<decltype(constant)::value>(epilogue.alpha, epilogue.beta, results[q]));
      }
    });
  }
}

// The same, by the problem's pool.
template <typename T>
void pool_rows(const ConvProblem& problem, const RowBand& band, const float* unpooled, T* y) {
  if (problem.epilogue.pool.kind == PoolKind::max) {
    pool_rows_by(problem, band, unpooled, y, -std::numeric_limits<float>::infinity(),
                 [](float most, float value) {
                   return value > most || value != value ? value : most;  // a NaN stays
                 });
  } else {
    pool_rows_by(problem, band, unpooled, y, 0.0f, [](float sum, float value) { return sum + value; });
  }
}

}  // namespace convswap
