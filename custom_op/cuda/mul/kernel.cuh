#pragma once

// Mul; see mul.cc.

#include "conv/small_floats.h"  // the element types of the instances' names
#include "cuda/mul/arguments.h"
#include "cuda/primitives/chunk.cuh"
#include "cuda/primitives/dependent_launch.cuh"
#include "cuda/primitives/naive_conv.cuh"

namespace convswap::mul {

// Blocks of a row of the grid share an image; neighbouring threads multiply neighbouring vectors. A thread
// loads kVectors of them before it multiplies.
template <int kElements, typename T>
__device__ inline void multiply_images(const Arguments<T>& problem) {
  using Product = typename AccumulatorOf<T>::Type;
  using Vector = Chunk<T, kElements>;
  constexpr unsigned kBlockVectors = kThreads * kVectors;
  for (int n = static_cast<int>(blockIdx.y); n < problem.images; n += static_cast<int>(gridDim.y)) {
    const auto* const x = reinterpret_cast<const Vector*>(problem.x + n * problem.image_elements);
    auto* const y = reinterpret_cast<Vector*>(problem.y + n * problem.image_elements);
    const auto* const factors =
        reinterpret_cast<const Vector*>(problem.w + static_cast<long long>(n) * problem.channels);
    for (unsigned first = blockIdx.x * kBlockVectors + threadIdx.x; first < problem.image_vectors;
         first += gridDim.x * kBlockVectors) {
      Vector values[kVectors];
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        const unsigned vector = first + i * kThreads;
        if (vector < problem.image_vectors) values[i] = x[vector];
      }
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        const unsigned vector = first + i * kThreads;
        if (vector >= problem.image_vectors) continue;
        const unsigned position = problem.position_vectors.quotient_of_any(vector);
        const Vector own = factors[vector - position * problem.position_vectors.divisor];
#pragma unroll
        for (int c = 0; c < kElements; ++c) {
          values[i].values[c] =
              static_cast<T>(static_cast<Product>(values[i].values[c]) * static_cast<Product>(own.values[c]));
        }
        y[vector] = values[i];
      }
    }
  }
}

// kHasVectors: the channels are whole vectors of 16 bytes, which are multiplied if all tensors are aligned.
template <typename T, bool kHasVectors>
__global__ void __launch_bounds__(kThreads) kernel(const Arguments<T> problem) {
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  if constexpr (kHasVectors) {
    if (problem.has_vectors) {
      multiply_images<Chunk<T>::kSize>(problem);
      return;
    }
  }
  multiply_images<1>(problem);
}

}  // namespace convswap::mul
