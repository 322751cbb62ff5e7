#pragma once

// What follows a convolution, as kernels of their own; see epilogue.cc.

#include "conv/epilogue_math.h"
#include "conv/small_floats.h"  // what its instances are named by
#include "conv/with_activation.h"
#include "cuda/epilogue/arguments.h"
#include "cuda/primitives/dependent_launch.cuh"
#include "cuda/primitives/naive_conv.cuh"

namespace convswap::epilogue {

// So many neighbours are one load or store.
template <typename T>
struct alignas(16) Chunk {
  static constexpr int kSize = 16 / sizeof(T);
  T values[kSize];
};

template <typename T>
__device__ inline bool is_aligned(const T* pointer) {
  return reinterpret_cast<unsigned long long>(pointer) % 16 == 0;
}

// Without a pool: y lies as x does. y may be x, since each element is read by the thread that writes it.
template <Activation kActivation, typename T, typename Sum>
__device__ inline void activate_all(const Arguments<T>& problem) {
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

// The windows of the pool, of a convolution's output and the residual to add, for one element of y each.
template <typename T, typename Sum>
class Windows {
 public:
  __device__ explicit Windows(const Arguments<T>& problem)
      : problem_(problem),
        height_(static_cast<int>(problem.epilogue.pool.kernel[0])),
        width_(static_cast<int>(problem.epilogue.pool.kernel[1])) {}

  // Moves on to the window that begins in that row and column, before the first of each where these are
  // negative, of the plane that begins at `plane`.
  __device__ void move(long long plane, int row, int column) { plane_ = plane, row_ = row, column_ = column; }

  // Calls back with each number of the window, row after row.
  template <typename Call>
  __device__ void for_each(Call call) const {
    const int row_end = min(row_ + height_, problem_.height);
    const int column_end = min(column_ + width_, problem_.width);
    for (int row = max(0, row_); row < row_end; ++row) {
      for (int column = max(0, column_); column < column_end; ++column) {
        const long long at = plane_ + row * problem_.width + column;
        Sum value = static_cast<Sum>(problem_.x[at]);
        if (problem_.z != nullptr) value += static_cast<Sum>(problem_.z[at]);
        call(value);
      }
    }
  }

  // Whether there is a number in the window, its size is kSize in both directions and nothing is added.
  template <int kSize>
  __device__ bool has_size() const {
    return height_ == kSize && width_ == kSize && problem_.z == nullptr && row_ + kSize > 0 &&
           row_ < problem_.height && column_ + kSize > 0 && column_ < problem_.width;
  }
  // Calls back with these, all loaded at once; where the window leaves the plane, with numbers at its edge
  // again, which the largest does not mind.
  template <int kSize, typename Call>
  __device__ void for_each_at_once(Call call) const {
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

// Stores what `pooled(windows, row, column)` gives for each element of y. Neighbouring threads take
// neighbours, of a part of a plane, or of some planes at once where they are small.
template <typename T, typename Sum, typename Pooled>
__device__ inline void pool_all(const Arguments<T>& problem, Pooled pooled) {
  const Pool& pool = problem.epilogue.pool;
  const int stride_height = static_cast<int>(pool.stride[0]), stride_width = static_cast<int>(pool.stride[1]);
  const int pad_height = static_cast<int>(pool.pad_begin[0]), pad_width = static_cast<int>(pool.pad_begin[1]);
  const int y_plane = static_cast<int>(problem.y_plane.divisor);
  const int at_once = problem.planes_at_once * y_plane;
  Windows<T, Sum> windows(problem);
  for (unsigned unit = blockIdx.x; unit < problem.units; unit += gridDim.x) {
    const unsigned group = problem.parts.quotient_of_any(unit);
    const int part = static_cast<int>(unit - group * problem.parts.divisor);
    const long long first = static_cast<long long>(group) * at_once;
    const long long first_input =
        static_cast<long long>(group) * problem.planes_at_once * problem.plane_input;
    const int end = static_cast<int>(min(
        problem.elements - first,
        min(static_cast<long long>(at_once), (part + 1) * static_cast<long long>(problem.elements_of_part))));
    for (int i = part * problem.elements_of_part + static_cast<int>(threadIdx.x); i < end;
         i += static_cast<int>(blockDim.x)) {
      const int plane = problem.y_plane.quotient_of_any(i);
      const int within = i - plane * y_plane;
      const int row = problem.y_width.quotient_of_any(within);
      const int column = within - row * static_cast<int>(problem.y_width.divisor);
      windows.move(first_input + static_cast<long long>(plane) * problem.plane_input,
                   row * stride_height - pad_height, column * stride_width - pad_width);
      problem.y[first + i] = static_cast<T>(pooled(windows, row, column));
    }
  }
}

// The largest of a window; a NaN stays.
template <typename Sum>
struct Largest {
  Sum result = -static_cast<Sum>(infinity());

  __device__ void take(Sum value) {
    if (value > result || value != value) result = value;
  }
};

// The largest of what an increasing activation makes of each is that of the largest.
template <typename T, typename Sum>
__device__ inline void activate_largest(const Arguments<T>& problem) {
  pool_all<T, Sum>(problem, [&](const Windows<T, Sum>& windows, int, int) {
    Largest<Sum> largest;
    const auto take = [&](Sum value) { largest.take(value); };
    if (windows.template has_size<2>()) {
      windows.template for_each_at_once<2>(take);
    } else if (windows.template has_size<3>()) {
      windows.template for_each_at_once<3>(take);
    } else {
      windows.for_each(take);
    }
    Sum result{};
    const Epilogue& epilogue = problem.epilogue;
    with_activation(epilogue.activation, [&](auto activation) {
      result = activate<Sum>(decltype(activation)::value, epilogue.alpha, epilogue.beta, largest.result);
    });
    return result;
  });
}

template <Activation kActivation, typename T, typename Sum>
__device__ inline void pool_activated(const Arguments<T>& problem) {
  const Epilogue& epilogue = problem.epilogue;
  const auto activated = [&](Sum value) {
    return activate<Sum>(kActivation, epilogue.alpha, epilogue.beta, value);
  };
  pool_all<T, Sum>(problem, [&](const Windows<T, Sum>& windows, int row, int column) {
    if (epilogue.pool.kind == PoolKind::max) {
      Largest<Sum> largest;
      windows.for_each([&](Sum value) { largest.take(activated(value)); });
      return largest.result;
    }
    Sum sum = 0;
    windows.for_each([&](Sum value) { sum += activated(value); });
    const PoolWindow rows(epilogue.pool, 0, row, problem.height);
    const PoolWindow columns(epilogue.pool, 1, column, problem.width);
    return sum / static_cast<Sum>(rows.counted * columns.counted);
  });
}

// kPools: the problem has a pool.
template <typename T, bool kPools>
__global__ void kernel(const Arguments<T> problem) {
  using Sum = typename AccumulatorOf<T>::Type;
  griddepcontrol_wait();
  if constexpr (kPools) {
    if (problem.epilogue.pool.kind == PoolKind::max && is_increasing(problem.epilogue)) {
      activate_largest<T, Sum>(problem);
      return;
    }
  }
  with_activation(problem.epilogue.activation, [&](auto activation) {
    if constexpr (kPools) {
      pool_activated<decltype(activation)::value, T, Sum>(problem);
    } else {
      activate_all<decltype(activation)::value, T, Sum>(problem);
    }
  });
}

}  // namespace convswap::epilogue
