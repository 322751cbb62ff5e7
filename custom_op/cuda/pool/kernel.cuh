#pragma once

// Pools of NHWC tensors; see pool.cc.

#include "conv/epilogue_math.h"
#include "conv/quantization.h"
#include "conv/small_floats.h"  // the element types of the instances' names
#include "cuda/pool/arguments.h"
#include "cuda/primitives/chunk.cuh"
#include "cuda/primitives/dependent_launch.cuh"
#include "cuda/primitives/naive_conv.cuh"
#include "cuda/primitives/nan_min_max.cuh"
#include "cuda/primitives/packed_max.cuh"
#include "cuda/primitives/shared_memory_at.cuh"

namespace convswap::pool {

// The lowest number of a type: -infinity, or the least integer.
template <typename T>
__device__ inline T lowest() {
  return T(-infinity());
}
template <>
__device__ inline Int8 lowest<Int8>() {
  return -128;
}
template <>
__device__ inline UInt8 lowest<UInt8>() {
  return 0;
}

template <typename T>
__device__ inline T max_of(T a, T b) {
  if constexpr (kAreSame<T, float>) {
    return max_nan(a, b);
  } else if constexpr (kAreSame<T, double>) {
    return a > b || a != a ? a : b;
  } else {
    const float x = static_cast<float>(a), y = static_cast<float>(b);
    return x > y || x != x ? a : b;
  }
}

// Running maxima of adjacent channels, in the element type. A NaN stays.
template <typename T, int kElements>
struct Maxima {
  using Values = Chunk<T, kElements>;
  // True if an element may be included twice.
  static constexpr bool kIsIdempotent = true;

  Values values;

  __device__ void clear() {
#pragma unroll
    for (T& value : values.values) value = lowest<T>();
  }

  __device__ void include(const Values& others) {
    if constexpr (sizeof(T) < 4 && sizeof(Values) == 16) {
      uint4 a, b;
      memcpy(&a, &values, sizeof a);
      memcpy(&b, &others, sizeof b);
      a = {packed_max<T>(a.x, b.x), packed_max<T>(a.y, b.y), packed_max<T>(a.z, b.z),
           packed_max<T>(a.w, b.w)};
      memcpy(&values, &a, sizeof a);
    } else {
#pragma unroll
      for (int c = 0; c < kElements; ++c) values.values[c] = max_of(values.values[c], others.values[c]);
    }
  }

  __device__ void merge(const Maxima& others) { include(others.values); }

  __device__ Values result(long long) const { return values; }
};

// Sums of adjacent channels.
template <typename T, int kElements>
struct Totals {
  using Sum = typename AccumulatorOf<T>::Type;
  using Values = Chunk<T, kElements>;
  static constexpr bool kIsIdempotent = false;

  Sum accumulators[kElements];

  __device__ void clear() {
#pragma unroll
    for (Sum& accumulator : accumulators) accumulator = 0;
  }

  __device__ void include(const Values& others) {
#pragma unroll
    for (int c = 0; c < kElements; ++c) accumulators[c] += static_cast<Sum>(others.values[c]);
  }

  __device__ void merge(const Totals& others) {
#pragma unroll
    for (int c = 0; c < kElements; ++c) accumulators[c] += others.accumulators[c];
  }

  __device__ Values result(long long divisor) const {
    Values averages;
#pragma unroll
    for (int c = 0; c < kElements; ++c)
      averages.values[c] = static_cast<T>(accumulators[c] / static_cast<Sum>(divisor));
    return averages;
  }
};

// Some adjacent channels of an image of x. Rows and columns count from the window's first ones, which may lie
// in the padding.
template <typename T, int kElements>
class Image {
 public:
  using Values = Chunk<T, kElements>;

  // `x`: the channels at the image's first position.
  __device__ Image(const Arguments<T>& problem, const T* x, int first_row, int first_column)
      : x_(x),
        height_(problem.height),
        width_(problem.width),
        channels_(problem.channels),
        first_row_(first_row),
        first_column_(first_column) {}

  __device__ Values load(int row, int column) const {
    const int position = (first_row_ + row) * width_ + first_column_ + column;
    return *reinterpret_cast<const Values*>(x_ + position * channels_);
  }

  // Loads from the nearest position inside the image; zero for one outside if `Reducer` would count it.
  template <typename Reducer>
  __device__ Values load_nearest(int row, int column) const {
    const int inside_row = min(max(first_row_ + row, 0), height_ - 1) - first_row_;
    const int inside_column = min(max(first_column_ + column, 0), width_ - 1) - first_column_;
    Values values = load(inside_row, inside_column);
    if (!Reducer::kIsIdempotent && (inside_row != row || inside_column != column)) {
#pragma unroll
      for (T& value : values.values) value = T(0.0f);
    }
    return values;
  }

  // The part inside the image of `count` rows or columns.
  __device__ int row_begin() const { return max(0, -first_row_); }
  __device__ int row_end(int count) const { return min(count, height_ - first_row_); }
  __device__ int column_begin() const { return max(0, -first_column_); }
  __device__ int column_end(int count) const { return min(count, width_ - first_column_); }

 private:
  const T* x_;
  int height_, width_, channels_, first_row_, first_column_;
};

// Reduces a window of kSize x kSize whose elements are all loaded first.
template <int kSize, typename Reducer, typename T, int kElements>
__device__ inline void reduce_square(const Image<T, kElements>& image, Reducer& result) {
  Chunk<T, kElements> values[kSize][kSize];
#pragma unroll
  for (int r = 0; r < kSize; ++r) {
#pragma unroll
    for (int s = 0; s < kSize; ++s) values[r][s] = image.template load_nearest<Reducer>(r, s);
  }
#pragma unroll
  for (int r = 0; r < kSize; ++r) {
#pragma unroll
    for (int s = 0; s < kSize; ++s) result.include(values[r][s]);
  }
}

// Reduces a column of the window, of kRows rows, or of `rows` if kRows is 0. Then kBatch elements at a time
// are loaded before they are reduced.
template <int kRows, int kBatch, typename Reducer, typename T, int kElements>
__device__ inline void reduce_column(const Image<T, kElements>& image, int rows, int column,
                                     Reducer& result) {
  if constexpr (kRows > 0) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) result.include(image.template load_nearest<Reducer>(r, column));
  } else {
    const int end = image.row_end(rows);
    for (int first = image.row_begin(); first < end; first += kBatch) {
      Chunk<T, kElements> values[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) values[i] = image.load(min(first + i, end - 1), column);
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        if (Reducer::kIsIdempotent || first + i < end) result.include(values[i]);
      }
    }
  }
}

// Reduces the windows of kRun neighbouring outputs of a row. Each column is reduced once, for all windows
// that it belongs to.
template <int kRows, int kRun, typename Reducer, typename T, int kElements>
__device__ inline void reduce_run(const Arguments<T>& problem, const Image<T, kElements>& image,
                                  Reducer (&results)[kRun]) {
  constexpr int kBatch = kRun == 1 ? 8 : 4;
  const int end = image.column_end((kRun - 1) * problem.stride_width + problem.kernel_width);
#pragma unroll 2
  for (int column = image.column_begin(); column < end; ++column) {
    if constexpr (kRun == 1) {
      reduce_column<kRows, kBatch>(image, problem.kernel_height, column, results[0]);
    } else {
      Reducer reduced;
      reduced.clear();
      reduce_column<kRows, kBatch>(image, problem.kernel_height, column, reduced);
#pragma unroll
      for (int i = 0; i < kRun; ++i) {
        const int in_window = column - i * problem.stride_width;
        if (in_window >= 0 && in_window < problem.kernel_width) results[i].merge(reduced);
      }
    }
  }
}

template <int kRun, typename Reducer, typename T, int kElements>
__device__ inline void reduce(const Arguments<T>& problem, const Image<T, kElements>& image,
                              Reducer (&results)[kRun]) {
#pragma unroll
  for (Reducer& result : results) result.clear();
  const int rows = problem.kernel_height;
  if constexpr (kRun == 1) {
    const bool is_square = rows == problem.kernel_width;
    if (is_square && rows == 2) return reduce_square<2>(image, results[0]);
    if (is_square && rows == 3) return reduce_square<3>(image, results[0]);
    if (is_square && rows == 5) return reduce_square<5>(image, results[0]);
    reduce_run<0>(problem, image, results);
  } else if (rows == 3) {
    reduce_run<3>(problem, image, results);
  } else if (rows == 5) {
    reduce_run<5>(problem, image, results);
  } else {
    reduce_run<0>(problem, image, results);
  }
}

// Pools with `Reducer`. Blocks of a row of the grid share an image; neighbouring threads pool neighbouring
// vectors.
template <int kRun, typename Reducer, int kElements, typename T>
__device__ inline void pool_images(const Arguments<T>& problem) {
  const long long x_image = static_cast<long long>(problem.height) * problem.width * problem.channels;
  const long long y_image = static_cast<long long>(problem.y_height) * problem.y_width * problem.channels;
  for (int n = static_cast<int>(blockIdx.y); n < problem.batch; n += static_cast<int>(gridDim.y)) {
    for (unsigned item = blockIdx.x * blockDim.x + threadIdx.x;
         item < static_cast<unsigned>(problem.image_items); item += gridDim.x * blockDim.x) {
      const unsigned run = problem.position_vectors.quotient_of_any(item);
      const int channel = static_cast<int>(item - run * problem.position_vectors.divisor) * kElements;
      const int row = static_cast<int>(problem.row_runs.quotient_of_any(run));
      const int column = static_cast<int>(run - row * problem.row_runs.divisor) * kRun;
      const Image<T, kElements> image(problem, problem.x + n * x_image + channel,
                                      row * problem.stride_height - problem.pad_height,
                                      column * problem.stride_width - problem.pad_width);
      Reducer results[kRun];
      reduce(problem, image, results);
      T* const y = problem.y + n * y_image + (row * problem.y_width + column) * problem.channels + channel;
#pragma unroll
      for (int i = 0; i < kRun; ++i) {
        if (i > 0 && column + i >= problem.y_width) break;
        long long divisor = 1;
        if constexpr (!Reducer::kIsIdempotent) {
          divisor = PoolWindow(problem.pool, 0, row, problem.height).divisor *
                    PoolWindow(problem.pool, 1, column + i, problem.width).divisor;
        }
        *reinterpret_cast<Chunk<T, kElements>*>(y + i * problem.channels) = results[i].result(divisor);
      }
    }
  }
}

// Pools whole images with `Reducer`. The threads of a lane share the positions of a vector, and then their
// results.
template <typename Reducer, int kElements, typename T>
__device__ inline void pool_whole_images(const Arguments<T>& problem) {
  static_assert(sizeof(Reducer) <= kPartialBytes);
  constexpr int kBatch = 8;
  const int lanes = problem.plane_lanes, rows = static_cast<int>(blockDim.x) / lanes;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % lanes, row = thread / lanes;
  const int vectors = static_cast<int>(problem.position_vectors.divisor);
  const int positions = problem.height * problem.width;
  Reducer* const partial = shared_memory_at(Offset<Reducer>{});
  for (int n = static_cast<int>(blockIdx.y); n < problem.batch; n += static_cast<int>(gridDim.y)) {
    const T* const x = problem.x + static_cast<long long>(n) * positions * problem.channels;
    // All threads of a block make the same number of passes.
    for (int first = static_cast<int>(blockIdx.x) * lanes; first < vectors;
         first += static_cast<int>(gridDim.x) * lanes) {
      const int channel = min(first + lane, vectors - 1) * kElements;
      Reducer result;
      result.clear();
      for (int begin = row; begin < positions; begin += kBatch * rows) {
        Chunk<T, kElements> values[kBatch];
#pragma unroll
        for (int i = 0; i < kBatch; ++i) {
          const int position = begin + i * rows;
          if (position >= positions) break;
          values[i] =
              *reinterpret_cast<const Chunk<T, kElements>*>(x + position * problem.channels + channel);
        }
#pragma unroll
        for (int i = 0; i < kBatch; ++i) {
          if (begin + i * rows < positions) result.include(values[i]);
        }
      }
      partial[thread] = result;
      for (int half = rows / 2; half > 0; half /= 2) {
        __syncthreads();
        if (row >= half) continue;
        result.merge(partial[thread + half * lanes]);
        partial[thread] = result;
      }
      if (row == 0 && first + lane < vectors) {
        T* const y = problem.y + static_cast<long long>(n) * problem.channels + channel;
        *reinterpret_cast<Chunk<T, kElements>*>(y) = result.result(positions);
      }
      __syncthreads();  // before the next pass writes its partial results
    }
  }
}

template <int kRun, typename Reducer, int kElements, typename T>
__device__ inline void pool_with(const Arguments<T>& problem) {
  if constexpr (kRun == kWholeImage) {
    pool_whole_images<Reducer, kElements>(problem);
  } else {
    pool_images<kRun, Reducer, kElements>(problem);
  }
}

template <int kRun, int kElements, typename T>
__device__ inline void pool_vectors(const Arguments<T>& problem) {
  if constexpr (sizeof(T) > 1) {
    if (problem.pool.kind == PoolKind::average) {
      pool_with<kRun, Totals<T, kElements>, kElements>(problem);
      return;
    }
  }
  pool_with<kRun, Maxima<T, kElements>, kElements>(problem);
}

// kHasVectors: a thread pools 16 bytes of channels instead of one element, if x and y are aligned. kRun: the
// neighbouring outputs that it computes, or kWholeImage.
template <typename T, bool kHasVectors, int kRun>
__global__ void kernel(const Arguments<T> problem) {
  griddepcontrol_wait();
  if constexpr (kHasVectors) {
    if (problem.has_vectors) {
      pool_vectors<kRun, Chunk<T>::kSize>(problem);
      return;
    }
  }
  pool_vectors<kRun, 1>(problem);
}

}  // namespace convswap::pool
