#pragma once

// Kernels for the epilogue of a convolution's output in global memory; see epilogue.cc.

#include "conv/epilogue_math.h"
#include "conv/small_floats.h"  // the element types of the instances' names
#include "conv/with_activation.h"
#include "cuda/epilogue/arguments.h"
#include "cuda/primitives/chunk.cuh"
#include "cuda/primitives/dependent_launch.cuh"
#include "cuda/primitives/naive_conv.cuh"

namespace convswap::epilogue {

template <typename T>
__device__ inline bool are_aligned(const Arguments<T>& problem) {
  return is_aligned(problem.x) && is_aligned(problem.y) && is_aligned(problem.z);
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
  const long long chunks = are_aligned(problem) ? problem.elements / Chunk<T>::kSize : 0;
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

// The pool window of kChannels adjacent elements of y, over the convolution's output plus residual. Several
// channels are adjacent in NHWC.
template <typename T, typename Sum, int kChannels>
class InputWindow {
 public:
  __device__ explicit InputWindow(const Arguments<T>& problem)
      : problem_(problem),
        is_aligned_(are_aligned(problem)),
        height_(static_cast<int>(problem.epilogue.pool.kernel[0])),
        width_(static_cast<int>(problem.epilogue.pool.kernel[1])) {}

  // Moves to the window whose first row and column are given, of the channels whose first position is at
  // offset `first`. Negative rows and columns lie in the padding.
  __device__ void move(long long first, int row, int column) { first_ = first, row_ = row, column_ = column; }

  // Calls `call` with the channels' numbers at each position of the window, in row-major order.
  template <typename Call>
  __device__ void for_each(Call call) const {
    const int row_end = min(row_ + height_, problem_.height);
    const int column_end = min(column_ + width_, problem_.width);
    for (int row = max(0, row_); row < row_end; ++row) {
      for (int column = max(0, column_); column < column_end; ++column) {
        const long long index = index_of(row, column);
        Sum values[kChannels];
        convert(load(problem_.x + index), values);
        if (problem_.z != nullptr) {
          Sum residual[kChannels];
          convert(load(problem_.z + index), residual);
#pragma unroll
          for (int c = 0; c < kChannels; ++c) values[c] += residual[c];
        }
        call(values);
      }
    }
  }

  // True for a window of kSize x kSize that covers at least one position, without a residual.
  template <int kSize>
  __device__ bool is_square() const {
    return height_ == kSize && width_ == kSize && problem_.z == nullptr && row_ + kSize > 0 &&
           row_ < problem_.height && column_ + kSize > 0 && column_ < problem_.width;
  }
  // Calls `call` with the channels' numbers at each position of the window after loading all of them. Beyond
  // the plane, edge positions are repeated, which leaves the maximum unchanged.
  template <int kSize, typename Call>
  __device__ void for_each_preloaded(Call call) const {
    Chunk<T, kChannels> chunks[kSize][kSize];
#pragma unroll
    for (int h = 0; h < kSize; ++h) {
      const int row = min(max(row_ + h, 0), problem_.height - 1);
#pragma unroll
      for (int v = 0; v < kSize; ++v) {
        chunks[h][v] = load(problem_.x + index_of(row, min(max(column_ + v, 0), problem_.width - 1)));
      }
    }
#pragma unroll
    for (int h = 0; h < kSize; ++h) {
#pragma unroll
      for (int v = 0; v < kSize; ++v) {
        Sum values[kChannels];
        convert(chunks[h][v], values);
        call(values);
      }
    }
  }

  __device__ void store(const Sum (&results)[kChannels], T* to) const {
    Chunk<T, kChannels> chunk;
#pragma unroll
    for (int c = 0; c < kChannels; ++c) chunk.values[c] = static_cast<T>(results[c]);
    if (kChannels == 1 || is_aligned_) {
      *reinterpret_cast<Chunk<T, kChannels>*>(to) = chunk;
    } else {
#pragma unroll
      for (int c = 0; c < kChannels; ++c) to[c] = chunk.values[c];
    }
  }

 private:
  __device__ long long index_of(int row, int column) const {
    return first_ + (row * problem_.width + column) * problem_.position_elements;
  }

  __device__ Chunk<T, kChannels> load(const T* from) const {
    if (kChannels == 1 || is_aligned_) return *reinterpret_cast<const Chunk<T, kChannels>*>(from);
    Chunk<T, kChannels> chunk;
#pragma unroll
    for (int c = 0; c < kChannels; ++c) chunk.values[c] = from[c];
    return chunk;
  }

  static __device__ void convert(const Chunk<T, kChannels>& chunk, Sum (&values)[kChannels]) {
#pragma unroll
    for (int c = 0; c < kChannels; ++c) values[c] = static_cast<Sum>(chunk.values[c]);
  }

  const Arguments<T>& problem_;
  bool is_aligned_;
  int height_, width_;
  long long first_;
  int row_, column_;
};

// Stores what `pool_window(window, row, column, results)` computes for each vector of y, kChannels adjacent
// elements. Neighbouring threads compute neighbouring vectors, of a part of a plane or of several small
// planes.
template <typename T, typename Sum, int kChannels, typename PoolFunction>
__device__ inline void store_pooled(const Arguments<T>& problem, PoolFunction pool_window) {
  const Pool& pool = problem.epilogue.pool;
  const int stride_height = static_cast<int>(pool.stride[0]), stride_width = static_cast<int>(pool.stride[1]);
  const int pad_height = static_cast<int>(pool.pad_begin[0]), pad_width = static_cast<int>(pool.pad_begin[1]);
  const int y_plane_vectors = static_cast<int>(problem.y_plane_vectors.divisor);
  const int group_vectors = problem.planes_per_group * y_plane_vectors;
  InputWindow<T, Sum, kChannels> window(problem);
  for (unsigned unit = blockIdx.x; unit < problem.units; unit += gridDim.x) {
    const unsigned group = problem.parts.quotient_of_any(unit);
    const int part = static_cast<int>(unit - group * problem.parts.divisor);
    const long long first = static_cast<long long>(group) * group_vectors;
    const long long first_x =
        static_cast<long long>(group) * problem.planes_per_group * problem.x_plane_elements;
    const int end = static_cast<int>(
        min(problem.vectors - first, min(static_cast<long long>(group_vectors),
                                         (part + 1) * static_cast<long long>(problem.vectors_per_part))));
    for (int i = part * problem.vectors_per_part + static_cast<int>(threadIdx.x); i < end;
         i += static_cast<int>(blockDim.x)) {
      const int plane = problem.y_plane_vectors.quotient_of_any(i);
      const int in_plane = i - plane * y_plane_vectors;
      const int position = problem.position_vectors.quotient_of_any(in_plane);
      const int vector = in_plane - position * static_cast<int>(problem.position_vectors.divisor);
      const int row = problem.y_width.quotient_of_any(position);
      const int column = position - row * static_cast<int>(problem.y_width.divisor);
      window.move(first_x + static_cast<long long>(plane) * problem.x_plane_elements + vector * kChannels,
                  row * stride_height - pad_height, column * stride_width - pad_width);
      Sum results[kChannels];
      pool_window(window, row, column, results);
      window.store(results, problem.y + (first + i) * kChannels);
    }
  }
}

// Running maxima of kChannels channels; a NaN stays.
template <typename Sum, int kChannels>
__device__ inline void include_in_maxima(const Sum (&values)[kChannels], Sum (&maxima)[kChannels]) {
#pragma unroll
  for (int c = 0; c < kChannels; ++c) {
    if (values[c] > maxima[c] || values[c] != values[c]) maxima[c] = values[c];
  }
}

template <typename Sum, int kChannels>
__device__ inline void fill(Sum (&values)[kChannels], Sum value) {
#pragma unroll
  for (Sum& each : values) each = value;
}

template <Activation kActivation, typename Sum, int kChannels>
__device__ inline void activate_channels(const Epilogue& epilogue, Sum (&values)[kChannels]) {
#pragma unroll
  for (Sum& value : values) value = activate<Sum>(kActivation, epilogue.alpha, epilogue.beta, value);
}

// Max pool of an increasing activation: activates only the maximum of the pool window.
template <typename T, typename Sum, int kChannels>
__device__ inline void max_pool_then_activate(const Arguments<T>& problem) {
  using Window = InputWindow<T, Sum, kChannels>;
  const auto pool_window = [&](const Window& window, int, int, Sum(&maxima)[kChannels]) {
    fill(maxima, -static_cast<Sum>(infinity()));
    const auto include = [&](const Sum(&values)[kChannels]) { include_in_maxima(values, maxima); };
    if (window.template is_square<2>()) {
      window.template for_each_preloaded<2>(include);
    } else if (window.template is_square<3>()) {
      window.template for_each_preloaded<3>(include);
    } else {
      window.for_each(include);
    }
    with_activation(problem.epilogue.activation, [&](auto activation) {
      activate_channels<decltype(activation)::value>(problem.epilogue, maxima);
    });
  };
  store_pooled<T, Sum, kChannels>(problem, pool_window);
}

// Pools what `activate_values` makes of the numbers at each position.
template <typename T, typename Sum, int kChannels, typename ActivateValues>
__device__ inline void activate_then_pool(const Arguments<T>& problem, ActivateValues activate_values) {
  const Pool& pool = problem.epilogue.pool;
  using Window = InputWindow<T, Sum, kChannels>;
  const auto pool_window = [&](const Window& window, int row, int column, Sum(&results)[kChannels]) {
    if (pool.kind == PoolKind::max) {
      fill(results, -static_cast<Sum>(infinity()));
      window.for_each([&](Sum(&values)[kChannels]) {
        activate_values(values);
        include_in_maxima(values, results);
      });
      return;
    }
    fill(results, Sum(0));
    window.for_each([&](Sum(&values)[kChannels]) {
      activate_values(values);
#pragma unroll
      for (int c = 0; c < kChannels; ++c) results[c] += values[c];
    });
    const PoolWindow rows(pool, 0, row, problem.height);
    const PoolWindow columns(pool, 1, column, problem.width);
    const Sum divisor = static_cast<Sum>(rows.divisor * columns.divisor);
#pragma unroll
    for (Sum& result : results) result = result / divisor;
  };
  store_pooled<T, Sum, kChannels>(problem, pool_window);
}

// kPools: the epilogue has a pool. kHasVectors: a thread pools 16 bytes of channels instead of one element.
template <typename T, bool kPools, bool kHasVectors>
__global__ void kernel(const Arguments<T> problem) {
  using Sum = typename AccumulatorOf<T>::Type;
  constexpr int kChannels = kHasVectors ? Chunk<T>::kSize : 1;
  griddepcontrol_wait();
  const Epilogue& epilogue = problem.epilogue;
  if constexpr (kPools) {
    if (epilogue.pool.kind == PoolKind::max && is_increasing(epilogue)) {
      max_pool_then_activate<T, Sum, kChannels>(problem);
      return;
    }
  }
  if constexpr (kHasVectors) {
    // Dispatches on the activation at each position: a loop for each activation compiles far slower.
    activate_then_pool<T, Sum, kChannels>(problem, [&](Sum(&values)[kChannels]) {
      with_activation(epilogue.activation, [&](auto activation) {
        activate_channels<decltype(activation)::value>(epilogue, values);
      });
    });
  } else {
    with_activation(epilogue.activation, [&](auto activation) {
      constexpr Activation kActivation = decltype(activation)::value;
      if constexpr (kPools) {
        activate_then_pool<T, Sum, kChannels>(
            problem, [&](Sum(&values)[kChannels]) { activate_channels<kActivation>(epilogue, values); });
      } else {
        store_activated<kActivation, T, Sum>(problem);
      }
    });
  }
}

}  // namespace convswap::epilogue
