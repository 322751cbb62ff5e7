#pragma once

// Kernels for the epilogue of a convolution's output in global memory; see epilogue.cc.

#include "conv/epilogue_math.h"
#include "conv/small_floats.h"  // the element types of the instances' names
#include "conv/with_activation.h"
#include "cuda/epilogue/arguments.h"
#include "cuda/primitives/dependent_launch.cuh"
#include "cuda/primitives/naive_conv.cuh"

namespace convswap::epilogue {

// Neighbouring elements of one 16-byte load or store.
template <typename T>
struct alignas(16) Chunk {
  static constexpr int kSize = 16 / sizeof(T);
  T values[kSize];
};

template <typename T>
__device__ inline bool is_aligned(const T* pointer) {
  return reinterpret_cast<unsigned long long>(pointer) % 16 == 0;
}

// Epilogue without a pool: y has the layout of x. y may be x, since the thread that reads an element also
// writes it.
template <Activation kActivation, typename T, typename Sum>
__device__ inline void store_activated(const Arguments<T>& problem) {
  const Epilogue& epilogue = problem.epilogue;
  const auto result_of = [&](T x, T z) {
    const Sum residual = problem.z == nullptr ? Sum(0) : static_cast<Sum>(z);
    return static_cast<T>(
        activate<Sum>(kActivation, epilogue.alpha, epilogue.beta, static_cast<Sum>(x) + residual));
  };
  const long long threads = static_cast<long long>(gridDim.x) * blockDim.x;
  const long long thread = blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x;
  const bool has_chunks = is_aligned(problem.x) && is_aligned(problem.y) && is_aligned(problem.z);
  const long long chunks = has_chunks ? problem.elements / Chunk<T>::kSize : 0;
  for (long long i = thread; i < chunks; i += threads) {
    Chunk<T> chunk = reinterpret_cast<const Chunk<T>*>(problem.x)[i];
    Chunk<T> residual{};
    if (problem.z != nullptr) residual = reinterpret_cast<const Chunk<T>*>(problem.z)[i];
#pragma unroll
    for (int j = 0; j < Chunk<T>::kSize; ++j)
      chunk.values[j] = result_of(chunk.values[j], residual.values[j]);
    reinterpret_cast<Chunk<T>*>(problem.y)[i] = chunk;
  }
  for (long long i = chunks * Chunk<T>::kSize + thread; i < problem.elements; i += threads) {
    problem.y[i] = result_of(problem.x[i], problem.z == nullptr ? T(0.0f) : problem.z[i]);
  }
}

// The pool window of one element of y, over the convolution's output plus residual.
template <typename T, typename Sum>
class InputWindow {
 public:
  __device__ explicit InputWindow(const Arguments<T>& problem)
      : problem_(problem),
        height_(static_cast<int>(problem.epilogue.pool.kernel[0])),
        width_(static_cast<int>(problem.epilogue.pool.kernel[1])) {}

  // Moves to the window whose first row and column are given, in the plane at offset `plane`. Negative rows
  // and columns lie in the padding.
  __device__ void move(long long plane, int row, int column) { plane_ = plane, row_ = row, column_ = column; }

  // Calls `call` with each number of the window, in row-major order.
  template <typename Call>
  __device__ void for_each(Call call) const {
    const int row_end = min(row_ + height_, problem_.height);
    const int column_end = min(column_ + width_, problem_.width);
    for (int row = max(0, row_); row < row_end; ++row) {
      for (int column = max(0, column_); column < column_end; ++column) {
        const long long index = plane_ + row * problem_.width + column;
        Sum value = static_cast<Sum>(problem_.x[index]);
        if (problem_.z != nullptr) value += static_cast<Sum>(problem_.z[index]);
        call(value);
      }
    }
  }

  // True for a window of kSize x kSize that covers at least one element, without a residual.
  template <int kSize>
  __device__ bool is_square() const {
    return height_ == kSize && width_ == kSize && problem_.z == nullptr && row_ + kSize > 0 &&
           row_ < problem_.height && column_ + kSize > 0 && column_ < problem_.width;
  }
  // Calls `call` with each number of the window after loading all of them. Beyond the plane, edge elements
  // are repeated, which leaves the maximum unchanged.
  template <int kSize, typename Call>
  __device__ void for_each_preloaded(Call call) const {
    const T* const x = problem_.x + plane_;
    T values[kSize][kSize];
#pragma unroll
    for (int h = 0; h < kSize; ++h) {
      const int row = min(max(row_ + h, 0), problem_.height - 1) * problem_.width;
#pragma unroll
      for (int v = 0; v < kSize; ++v) values[h][v] = x[row + min(max(column_ + v, 0), problem_.width - 1)];
    }
#pragma unroll
    for (int h = 0; h < kSize; ++h) {
#pragma unroll
      for (int v = 0; v < kSize; ++v) call(static_cast<Sum>(values[h][v]));
    }
  }

 private:
  const Arguments<T>& problem_;
  int height_, width_;
  long long plane_;
  int row_, column_;
};

// Stores `pooled(window, row, column)` for each element of y. Neighbouring threads compute neighbouring
// elements, of a part of a plane or of several small planes.
template <typename T, typename Sum, typename Pooled>
__device__ inline void store_pooled(const Arguments<T>& problem, Pooled pooled) {
  const Pool& pool = problem.epilogue.pool;
  const int stride_height = static_cast<int>(pool.stride[0]), stride_width = static_cast<int>(pool.stride[1]);
  const int pad_height = static_cast<int>(pool.pad_begin[0]), pad_width = static_cast<int>(pool.pad_begin[1]);
  const int y_plane = static_cast<int>(problem.y_plane.divisor);
  const int group_elements = problem.planes_per_group * y_plane;
  InputWindow<T, Sum> window(problem);
  for (unsigned unit = blockIdx.x; unit < problem.units; unit += gridDim.x) {
    const unsigned group = problem.parts.quotient_of_any(unit);
    const int part = static_cast<int>(unit - group * problem.parts.divisor);
    const long long first = static_cast<long long>(group) * group_elements;
    const long long first_x = static_cast<long long>(group) * problem.planes_per_group * problem.x_plane;
    const int end = static_cast<int>(
        min(problem.elements - first, min(static_cast<long long>(group_elements),
                                          (part + 1) * static_cast<long long>(problem.elements_per_part))));
    for (int i = part * problem.elements_per_part + static_cast<int>(threadIdx.x); i < end;
         i += static_cast<int>(blockDim.x)) {
      const int plane = problem.y_plane.quotient_of_any(i);
      const int y_index = i - plane * y_plane;
      const int row = problem.y_width.quotient_of_any(y_index);
      const int column = y_index - row * static_cast<int>(problem.y_width.divisor);
      window.move(first_x + static_cast<long long>(plane) * problem.x_plane, row * stride_height - pad_height,
                  column * stride_width - pad_width);
      problem.y[first + i] = static_cast<T>(pooled(window, row, column));
    }
  }
}

// Running maximum; a NaN stays.
template <typename Sum>
struct RunningMax {
  Sum result = -static_cast<Sum>(infinity());

  __device__ void include(Sum value) {
    if (value > result || value != value) result = value;
  }
};

// Max pool of an increasing activation: activates only the maximum of the pool window.
template <typename T, typename Sum>
__device__ inline void max_pool_then_activate(const Arguments<T>& problem) {
  store_pooled<T, Sum>(problem, [&](const InputWindow<T, Sum>& window, int, int) {
    RunningMax<Sum> maximum;
    const auto include = [&](Sum value) { maximum.include(value); };
    if (window.template is_square<2>()) {
      window.template for_each_preloaded<2>(include);
    } else if (window.template is_square<3>()) {
      window.template for_each_preloaded<3>(include);
    } else {
      window.for_each(include);
    }
    Sum result{};
    const Epilogue& epilogue = problem.epilogue;
    with_activation(epilogue.activation, [&](auto activation) {
      result = activate<Sum>(decltype(activation)::value, epilogue.alpha, epilogue.beta, maximum.result);
    });
    return result;
  });
}

template <Activation kActivation, typename T, typename Sum>
__device__ inline void activate_then_pool(const Arguments<T>& problem) {
  const Epilogue& epilogue = problem.epilogue;
  const auto activated = [&](Sum value) {
    return activate<Sum>(kActivation, epilogue.alpha, epilogue.beta, value);
  };
  store_pooled<T, Sum>(problem, [&](const InputWindow<T, Sum>& window, int row, int column) {
    if (epilogue.pool.kind == PoolKind::max) {
      RunningMax<Sum> maximum;
      window.for_each([&](Sum value) { maximum.include(activated(value)); });
      return maximum.result;
    }
    Sum sum = 0;
    window.for_each([&](Sum value) { sum += activated(value); });
    const PoolWindow rows(epilogue.pool, 0, row, problem.height);
    const PoolWindow columns(epilogue.pool, 1, column, problem.width);
    return sum / static_cast<Sum>(rows.divisor * columns.divisor);
  });
}

// kPools: the epilogue has a pool.
template <typename T, bool kPools>
__global__ void kernel(const Arguments<T> problem) {
  using Sum = typename AccumulatorOf<T>::Type;
  griddepcontrol_wait();
  if constexpr (kPools) {
    if (problem.epilogue.pool.kind == PoolKind::max && is_increasing(problem.epilogue)) {
      max_pool_then_activate<T, Sum>(problem);
      return;
    }
  }
  with_activation(problem.epilogue.activation, [&](auto activation) {
    if constexpr (kPools) {
      activate_then_pool<decltype(activation)::value, T, Sum>(problem);
    } else {
      store_activated<decltype(activation)::value, T, Sum>(problem);
    }
  });
}

}  // namespace convswap::epilogue
