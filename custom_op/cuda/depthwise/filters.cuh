#pragma once

// The filters of a block's planes, brought to shared memory.

#include "cuda/depthwise/block.cuh"

namespace convswap::depthwise {

// The filters and biases of the block's planes, the first of a thread asked for before the window is.
template <typename T>
struct Filters {
  const Arguments<T>& a;
  const Tile& tile;
  int count;
  T first;

  __device__ Filters(const Arguments<T>& arguments, const Tile& of) : a(arguments), tile(of) {
    count = a.block_planes * (static_cast<int>(a.taps.divisor) + 1);
    first = weight(static_cast<int>(threadIdx.x));
  }

  // The biases lie behind the weights.
  __device__ T weight(int i) const {
    if (i >= count) return T(0.0f);
    const int weights = a.block_planes * static_cast<int>(a.taps.divisor);
    const int plane = i < weights ? static_cast<int>(a.taps.quotient(i)) : i - weights;
    if (tile.plane + plane >= a.planes) return T(0.0f);
    const long long filter = PlaneNumbers(a, tile.plane + plane).filter;
    if (i >= weights) return a.b == nullptr ? T(0.0f) : a.b[filter];
    return a.w[filter * a.taps.divisor + (i - plane * static_cast<int>(a.taps.divisor))];
  }

  __device__ void store(const BlockMemory& memory) const {
    const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
    if (thread < count) memory.weights[thread] = static_cast<float>(first);
    for (int i = thread + threads; i < count; i += threads) memory.weights[i] = static_cast<float>(weight(i));
  }
};

}  // namespace convswap::depthwise
