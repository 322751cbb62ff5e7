#pragma once

#include <cstddef>

#include "plan/algorithm.h"

namespace convswap {

// Rounds the size of a part of scratch memory up to 256 bytes, the alignment of device memory.
inline std::size_t aligned(std::size_t bytes) { return (bytes + 255) / 256 * 256; }

// Scratch memory of prepare_and_run: the plan's, then the prepared weights.
inline std::size_t scratch_bytes_with_weights(const Plan& plan) {
  return aligned(plan.scratch_bytes()) + plan.prepared_form().bytes;
}

// Prepares the weights in scratch memory if the plan has a prepared form, and runs the plan. Scratch memory
// has scratch_bytes_with_weights() bytes.
inline void prepare_and_run(const Plan& plan, const ConvTensors& tensors, Execution execution) {
  if (plan.prepared_form().bytes > 0) {
    void* const prepared = static_cast<char*>(execution.scratch) + aligned(plan.scratch_bytes());
    plan.prepare(tensors.w, prepared, execution.stream);
    execution.prepared_weights = prepared;
    execution.weights_are_constant = false;  // a kernel before the plan's writes them
  }
  plan.run(tensors, execution);
}

}  // namespace convswap
