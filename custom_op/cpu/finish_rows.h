#pragma once

// What of an epilogue follows the kernels' sums and biases, but for a pool.

#include <cstdint>
#include <limits>

#include "conv/epilogue_math.h"
#include "conv/with_activation.h"
#include "cpu/pool_rows.h"
#include "cpu/vector_math.h"

namespace convswap {

// The activation before a pool: some are a clip, which the kernels do, and the others follow.
struct SplitActivation {
  bool clips = false;
  float least = 0, most = 0;  // least <= most
  Activation later = Activation::none;

  explicit SplitActivation(const Epilogue& epilogue) {
    later = activates_after_pool(epilogue) ? Activation::none : epilogue.activation;
    if (epilogue.has_residual) return;
    if (later == Activation::relu) {
      clips = true, least = 0, most = std::numeric_limits<float>::infinity();
    } else if (later == Activation::clip && epilogue.alpha <= epilogue.beta) {
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

// Adds the residual, whose first row may be null, and activates.
template <typename T, typename Target>
void finish_rows(const Epilogue& epilogue, Activation activation, int64_t rows, int64_t columns,
                 Rows<const float> values, Rows<const T> residual, Rows<Target> target) {
  with_activation(activation, [&](auto constant) {
    for (int64_t row = 0; row < rows; ++row) {
      const float* const found = values.first + row * values.pitch;
      const T* const added = residual.first == nullptr ? nullptr : residual.first + row * residual.pitch;
      Target* const stored = target.first + row * target.pitch;
      for (int64_t i = 0; i < columns; ++i) {
        float value = found[i];
        if (added != nullptr) value += static_cast<float>(added[i]);
        value = vector_activate<decltype(constant)::value>(epilogue.alpha, epilogue.beta, value);
        stored[i] = static_cast<Target>(value);
      }
    }
  });
}

}  // namespace convswap
