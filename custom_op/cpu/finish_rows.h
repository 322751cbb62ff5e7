#pragma once

// What of an epilogue follows the kernels' sums and biases, but for a pool.

#include <cstdint>
#include <limits>
#include <type_traits>

#include "conv/epilogue_math.h"
#include "conv/with_activation.h"
#include "cpu/activate.h"
#include "cpu/activation_lanes.h"
#include "cpu/pool_rows.h"

namespace convswap {

// The activation before a pool: some are a clip, which the kernels do, and the others follow. Those kernels
// that add the residual clip behind it.
struct SplitActivation {
  bool clips = false;
  float least = 0, most = 0;
  Activation later = Activation::none;

  explicit SplitActivation(const Epilogue& epilogue, bool adds_residual = false) {
    later = activates_after_pool(epilogue) ? Activation::none : epilogue.activation;
    if (epilogue.has_residual && !adds_residual) return;
    if (later == Activation::relu) {
      clips = true, least = 0, most = std::numeric_limits<float>::infinity();
    } else if (later == Activation::clip) {
      clips = true, least = epilogue.alpha, most = epilogue.beta;
    }
    if (clips) later = Activation::none;
  }
};

// Rows that lie `pitch` apart.
template <typename Element>
struct Rows {
  Element* first;
  int64_t pitch;
};

// A bias, and the residual of a row, which may be null, then the activation.
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

// The same of rows without a bias; the first of the residual may be null.
template <typename T, typename Target>
void finish_rows(const Epilogue& epilogue, Activation activation, const ActivationKernels& kernels,
                 int64_t rows, int64_t columns, Rows<const float> values, Rows<const T> residual,
                 Rows<Target> target) {
  for (int64_t row = 0; row < rows; ++row) {
    const T* const added = residual.first == nullptr ? nullptr : residual.first + row * residual.pitch;
    finish_row(epilogue, activation, kernels, columns, values.first + row * values.pitch, 0.0f, added,
               target.first + row * target.pitch);
  }
}

}  // namespace convswap
