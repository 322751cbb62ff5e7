#pragma once

// The kernel of `tiled`; see tiled.cc.

#include "conv/epilogue_math.h"
#include "conv/small_floats.h"  // what its instances are named by
#include "cuda/primitives/dependent_launch.cuh"
#include "cuda/primitives/global_memory.cuh"
#include "cuda/primitives/naive_conv.cuh"
#include "cuda/tiled/arguments.h"

namespace convswap::tiled {

extern __shared__ __align__(16) float shared[];

// Copies count numbers to shared memory, four of a thread at a time, so that their latencies overlap.
template <typename Sum, typename Load, typename Store>
__device__ inline void stage(int count, Load load, Store store) {
  constexpr int kAtATime = 4;
  const int threads = static_cast<int>(blockDim.x);
  for (int first = static_cast<int>(threadIdx.x); first < count; first += kAtATime * threads) {
    Sum values[kAtATime];
#pragma unroll
    for (int j = 0; j < kAtATime; ++j) {
      const int i = first + j * threads;
      values[j] = i < count ? load(i) : Sum(0);
    }
#pragma unroll
    for (int j = 0; j < kAtATime; ++j) {
      const int i = first + j * threads;
      if (i < count) store(i, values[j]);
    }
  }
}

// Stages, of so many channels from the first one on, the part of x that a tile of an output plane needs, zero
// beyond the image, and the weights of so many filters. Of small tiles both are asked for before either is
// there.
//
// Taps that are neighbours in w, of filters that are far apart there, come to lie the other way round. A warp
// takes 8 taps of 4 filters: whole sectors of memory, and 32 different banks.
template <typename T, typename Sum>
__device__ inline void stage_channels(const Arguments<T>& a, const T* x, const T* w, int first_channel,
                                      int channels, int filters, int depth, int first_row, int first_column,
                                      Sum* window, Sum* weights) {
  const auto pixel_place = [&](int i, int& channel, int& row, int& column) {
    channel = static_cast<int>(a.window_size.quotient(i));
    const int within = i - channel * static_cast<int>(a.window_size.divisor);
    row = static_cast<int>(a.window_width.quotient(within));
    column = within - row * static_cast<int>(a.window_width.divisor);
  };
  const auto weight_place = [&](int i, int& tap, int& filter) {
    const int many = i / 32;
    const int eights = static_cast<int>(a.filter_quads.quotient(many));
    tap = eights * 8 + i % 8;
    filter = (many - eights * static_cast<int>(a.filter_quads.divisor)) * 4 + i / 8 % 4;
  };
  const int pixels = channels * static_cast<int>(a.window_size.divisor);
  const int taps_of_channel = a.filter_height * a.filter_width;
  const int taps = channels * taps_of_channel, taps_of_filter = a.channels * taps_of_channel;
  const int weights_begin = (pixels + 31) / 32 * 32;
  stage<Sum>(
      weights_begin + (taps + 7) / 8 * static_cast<int>(a.filter_quads.divisor) * 32,
      [&](int i) {
        if (i >= weights_begin) {
          int tap, filter;
          weight_place(i - weights_begin, tap, filter);
          return tap < taps && filter < filters ? static_cast<Sum>(w[filter * taps_of_filter + tap]) : Sum(0);
        }
        int channel, row, column;
        pixel_place(i, channel, row, column);
        row += first_row, column += first_column;
        bool is_inside =
            i < pixels && row >= 0 && row < a.input_height && column >= 0 && column < a.input_width;
        int plane = first_channel + channel;
        if (a.has_depth) {
          const int own = static_cast<int>(a.depth_taps.quotient_of_any(plane));
          const int tap = plane - own * static_cast<int>(a.depth_taps.divisor);
          const int within = depth * a.stride_depth + tap * a.dilation_depth - a.pad_depth;
          is_inside = is_inside && within >= 0 && within < a.input_depth;
          plane = own * a.input_depth + within;
        }
        return is_inside ? static_cast<Sum>(x[(plane * a.input_height + row) * a.input_width + column])
                         : Sum(0);
      },
      [&](int i, Sum value) {
        if (i >= weights_begin) {
          int tap, filter;
          weight_place(i - weights_begin, tap, filter);
          if (tap < taps) weights[tap * a.weight_pitch + filter] = value;
        } else if (i < pixels) {
          int channel, row, column;
          pixel_place(i, channel, row, column);
          window[channel * a.window_plane + row * a.window_pitch + column] = value;
        }
      });
}

// A thread's outputs: 2 rows x kColumns pixels of each of its filters. Its columns lie as far apart as there
// are threads side by side, so that neighbouring threads read neighbouring numbers.
template <typename Sum, int kFilters, int kColumns>
struct Sums {
  Sum of[kFilters][2][kColumns] = {};

  __device__ void add_tap(const Sum* pixels, int next_row, int next_column, const Sum* taps) {
    Sum tap[kFilters];
    if constexpr (kFilters % 4 == 0 && kAreSame<Sum, float>) {
#pragma unroll
      for (int k = 0; k < kFilters; k += 4) {
        *reinterpret_cast<float4*>(tap + k) = *reinterpret_cast<const float4*>(taps + k);
      }
    } else {
#pragma unroll
      for (int k = 0; k < kFilters; ++k) tap[k] = taps[k];
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int j = 0; j < kColumns; ++j) {
        const Sum pixel = pixels[i * next_row + j * next_column];
#pragma unroll
        for (int k = 0; k < kFilters; ++k) of[k][i][j] += pixel * tap[k];
      }
    }
  }

  // A row of a filter; kTaps 0 stands for any number of taps, any distance apart.
  template <int kTaps>
  __device__ void add_row(const Sum* pixels, int next_row, int next_column, const Sum* taps, int pitch,
                          int count, int distance) {
    if constexpr (kTaps == 0) {
#pragma unroll 1
      for (int s = 0; s < count; ++s) {
        add_tap(pixels + s * distance, next_row, next_column, taps + s * pitch);
      }
    } else {
#pragma unroll
      for (int s = 0; s < kTaps; ++s) add_tap(pixels + s, next_row, next_column, taps + s * pitch);
    }
  }
};

__device__ inline void divide(const FastDivisor& divisor, int n, int& quotient, int& rest) {
  quotient = static_cast<int>(divisor.quotient_of_any(n));
  rest = n - quotient * static_cast<int>(divisor.divisor);
}

// Where a thread stands in its block: its pixels, its filters, and which rows of the filters are its own.
struct Place {
  int row, column, filter, split;
};

// Rows of the filters, of so many channels, that are a thread's.
template <int kTaps, typename T, typename Sum, int kFilters, int kColumns>
__device__ inline void add_channels(const Arguments<T>& a, const Place& place, int channels,
                                    const Sum* window, const Sum* weights,
                                    Sums<Sum, kFilters, kColumns>& accumulators) {
  const Sum* const corner =
      window + place.row * a.stride_height * a.window_pitch + place.column * a.stride_width;
  const int next_row = a.stride_height * a.window_pitch;
  const int next_column = a.columns / kColumns * a.stride_width;
#pragma unroll 1
  for (int u = place.split; u < channels * a.filter_height; u += a.splits) {
    const int c = static_cast<int>(a.rows_of_filter.quotient(u)), r = u - c * a.filter_height;
    accumulators.template add_row<kTaps>(corner + c * a.window_plane + r * a.dilation_height * a.window_pitch,
                                         next_row, next_column,
                                         weights + u * a.filter_width * a.weight_pitch + place.filter,
                                         a.weight_pitch, a.filter_width, a.dilation_width);
  }
}

// Where a tile's outputs lie that are sums of `splits` numbers in shared memory, filters x rows x columns
// each.
template <typename T, typename Sum>
struct TileSums {
  const Arguments<T>& a;
  const Sum* results;
  int size, split;  // of a filter's, of all

  __device__ TileSums(const Arguments<T>& arguments, const Sum* accumulators)
      : a(arguments), results(accumulators), size(a.rows * a.columns), split(a.filters_of_block * size) {}

  __device__ Sum at(int index) const {
    Sum sum = results[index];
#pragma unroll 1
    for (int s = 1; s < a.splits; ++s) sum += results[s * split + index];
    return sum;
  }
};

// Called, not inlined: its copies would be most of the kernel's code, for which the first blocks wait.
template <typename Sum>
__device__ __noinline__ Sum activated_slowly(const Epilogue& epilogue, Sum value) {
  return activate<Sum>(epilogue.activation, epilogue.alpha, epilogue.beta, value);
}
// The commonest activations in one way: nothing is below the floor of none.
template <typename Sum>
struct Activate {
  const Epilogue& epilogue;
  bool is_floored;
  Sum floor;

  __device__ explicit Activate(const Epilogue& of)
      : epilogue(of),
        is_floored(convswap::is_floored(of)),
        floor(of.activation == Activation::relu ? Sum(0) : -static_cast<Sum>(__int_as_float(0x7f800000))) {}

  // NaN is not below it.
  __device__ Sum operator()(Sum value) const {
    return !is_floored ? activated_slowly(epilogue, value) : value < floor ? floor : value;
  }
};

// Where an output of a tile lies in y, and its filter.
struct OutputPlace {
  int filter;
  long long to;
  bool exists;

  // `first` is the tile's first in y, of its first filter; `rows` and `columns` are what is left of the
  // output.
  template <typename T>
  __device__ OutputPlace(const Arguments<T>& a, int size, int index, long long first, int rows, int columns) {
    filter = static_cast<int>(a.tile_y_plane.quotient(index));
    const int within = index - filter * size;
    const int row = static_cast<int>(a.tile_y_columns.quotient(within)), column = within - row * a.columns;
    exists = row < rows && column < columns;
    // A plane of y is of all depths.
    to = first + static_cast<long long>(filter) * a.output_plane + (row * a.output_width + column);
  }
};

// Writes the outputs of a tile, four of a thread at a time, so that their latencies overlap. Called, so that
// small tiles do not wait for its code.
template <typename T, typename Sum>
__device__ __noinline__ void write_many_outputs(const Arguments<T>& a, const Sum* results, long long first,
                                                int first_filter, int filters, int rows, int columns) {
  constexpr int kTogether = 4;
  const TileSums<T, Sum> accumulators(a, results);
  const Activate<Sum> activate(a.epilogue);
  const int count = filters * accumulators.size, threads = static_cast<int>(blockDim.x);
  for (int begin = static_cast<int>(threadIdx.x); begin < count; begin += kTogether * threads) {
    Sum values[kTogether];
    long long to[kTogether];
    bool exist[kTogether];
#pragma unroll
    for (int j = 0; j < kTogether; ++j) {
      const int i = begin + j * threads;
      const OutputPlace place(a, accumulators.size, i, first, rows, columns);
      to[j] = place.to, exist[j] = i < count && place.exists;
      values[j] = Sum(0);
      if (!exist[j]) continue;
      values[j] = accumulators.at(i);
      if (a.b != nullptr) values[j] += static_cast<Sum>(a.b[first_filter + place.filter]);
      if (a.z != nullptr) values[j] += static_cast<Sum>(a.z[place.to]);
    }
#pragma unroll
    for (int j = 0; j < kTogether; ++j) {
      const Sum value = activate(values[j]);
      if (exist[j]) a.y[to[j]] = static_cast<T>(value);
    }
  }
}

// Writes what a tile gives of y whose elements are pooled of its outputs, with all that comes before.
template <typename T, typename Sum>
__device__ inline void write_pooled(const Arguments<T>& a, const TileSums<T, Sum>& accumulators,
                                    long long first_plane, int first_filter, int filters, int tile_row,
                                    int tile_column) {
  const Epilogue& epilogue = a.epilogue;
  const Pool& pool = epilogue.pool;
  const int y_plane = static_cast<int>(a.tile_y_plane.divisor),
            y_columns = static_cast<int>(a.tile_y_columns.divisor);
  const int first_row = tile_row * a.rows, first_column = tile_column * a.columns;
  const int first_y_row = tile_row * a.tile_y_rows, first_y_column = tile_column * y_columns;
  for (int i = static_cast<int>(threadIdx.x); i < filters * y_plane; i += static_cast<int>(blockDim.x)) {
    const int k = static_cast<int>(a.tile_y_plane.quotient(i)), within = i - k * y_plane;
    const int row_of_tile = static_cast<int>(a.tile_y_columns.quotient(within));
    const int y_row = first_y_row + row_of_tile;
    const int y_column = first_y_column + within - row_of_tile * y_columns;
    if (y_row >= a.y_height || y_column >= a.y_width) continue;
    const long long plane =
        first_plane + static_cast<long long>(k) * static_cast<int>(a.output_depth.divisor);
    const Sum bias = a.b == nullptr ? Sum(0) : static_cast<Sum>(a.b[first_filter + k]);
    const auto value_at = [&](int64_t row, int64_t column) {
      Sum value = accumulators.at(k * accumulators.size + (static_cast<int>(row) - first_row) * a.columns +
                                  static_cast<int>(column) - first_column);
      value += bias;
      if (a.z != nullptr)
        value += static_cast<Sum>(a.z[(plane * a.output_height + row) * a.output_width + column]);
      return activate<Sum>(epilogue.activation, epilogue.alpha, epilogue.beta, value);
    };
    const Sum value = pooled<Sum>(pool.kind, PoolWindow(pool, 0, y_row, a.output_height),
                                  PoolWindow(pool, 1, y_column, a.output_width), value_at);
    a.y[(plane * a.y_height + y_row) * a.y_width + y_column] = static_cast<T>(value);
  }
}

// Outputs of a thread of which one after the other is written.
constexpr int kFewOutputs = 4;

// Writes what a tile gives of y from its sums.
template <typename T, typename Sum>
__device__ inline void write_results(const Arguments<T>& a, const Sum* results, int image_plane,
                                     int first_filter, int filters, int tile_row, int tile_column) {
  int n, depth;
  divide(a.output_depth, image_plane, n, depth);
  const long long first_plane =
      (static_cast<long long>(n) * a.out_channels + first_filter) * static_cast<int>(a.output_depth.divisor) +
      depth;
  const TileSums<T, Sum> accumulators(a, results);
  if (a.epilogue.pool.kind != PoolKind::none) {
    write_pooled(a, accumulators, first_plane, first_filter, filters, tile_row, tile_column);
    return;
  }
  const int row = tile_row * a.rows, column = tile_column * a.columns;
  const long long first = (first_plane * a.output_height + row) * a.output_width + column;
  const int rows = a.output_height - row, columns = a.output_width - column;
  const int count = filters * accumulators.size, threads = static_cast<int>(blockDim.x);
  if (count > kFewOutputs * threads) {
    write_many_outputs(a, results, first, first_filter, filters, rows, columns);
    return;
  }
  const Activate<Sum> activate(a.epilogue);
  for (int i = static_cast<int>(threadIdx.x); i < count; i += threads) {
    const OutputPlace place(a, accumulators.size, i, first, rows, columns);
    if (!place.exists) continue;
    Sum value = accumulators.at(i);
    if (a.b != nullptr) value += static_cast<Sum>(a.b[first_filter + place.filter]);
    if (a.z != nullptr) value += static_cast<Sum>(a.z[place.to]);
    a.y[place.to] = static_cast<T>(activate(value));
  }
}

// So many blocks of the most threads fit into a multiprocessor's registers beside each other. Left to itself
// a compiler takes fewer registers than there are, and now and then local memory instead.
constexpr int resident_blocks(int registers_of_results) {
  return registers_of_results <= 4 ? 5 : registers_of_results <= 16 ? 4 : registers_of_results <= 32 ? 3 : 2;
}

template <typename T, int kFilters, int kColumns>
__global__ void __launch_bounds__(kMostThreads, resident_blocks(2 * kFilters * kColumns *
                                                                sizeof(typename AccumulatorOf<T>::Type) / 4))
    kernel(const __grid_constant__ Arguments<T> a) {
  using Sum = typename AccumulatorOf<T>::Type;
  int tiles_before, tile_row, tile_column, image_plane, group, filter_block;
  divide(a.tiles_across, static_cast<int>(blockIdx.x), tiles_before, tile_column);
  divide(a.tiles_down, tiles_before, image_plane, tile_row);
  divide(a.filter_blocks, static_cast<int>(blockIdx.y), group, filter_block);
  const int first_row = tile_row * a.rows, first_column = tile_column * a.columns;
  const int first_of_group = filter_block * a.filters_of_block;
  const int first_filter = group * a.filters + first_of_group;
  const int filters = min(a.filters_of_block, a.filters - first_of_group);
  const int taps = a.filter_height * a.filter_width;

  const int thread = static_cast<int>(threadIdx.x), across = static_cast<int>(a.threads_across.divisor);
  Place place;
  int threads_before, pixel_of_tile, filter_of_tile;
  divide(a.threads_of_filter, thread, threads_before, pixel_of_tile);
  divide(a.threads_across, pixel_of_tile, place.row, place.column);
  divide(a.filter_threads, threads_before, place.split, filter_of_tile);
  place.row *= 2, place.filter = filter_of_tile * kFilters;
  const bool is_at_work = place.split < a.splits;

  griddepcontrol_wait();
  // Biases are added last, when waiting for them would cost most.
  if (a.b != nullptr && thread < filters) prefetch_l1(a.b + first_filter + thread);
  Sum* const window = reinterpret_cast<Sum*>(shared);
  Sum* const weights = window + a.channels_at_a_time * a.window_plane;
  Sums<Sum, kFilters, kColumns> accumulators;
  for (int first_channel = 0; first_channel < a.channels; first_channel += a.channels_at_a_time) {
    const int channels = min(a.channels_at_a_time, a.channels - first_channel);
    int n, depth;  // found again each time, which costs no register
    divide(a.output_depth, image_plane, n, depth);
    const long long channels_before =
        static_cast<long long>(n) * a.in_channels +
        group * (a.has_depth ? static_cast<int>(a.depth_taps.quotient_of_any(a.channels)) : a.channels);
    if (first_channel > 0) __syncthreads();
    stage_channels(a, a.x + channels_before * a.input_plane,
                   a.w + (static_cast<long long>(first_filter) * a.channels + first_channel) * taps,
                   first_channel, channels, filters, depth, first_row * a.stride_height - a.pad_height,
                   first_column * a.stride_width - a.pad_width, window, weights);
    __syncthreads();
    if (!is_at_work) continue;
    const int unrolled = a.dilation_width == 1 ? a.filter_width : 0;
    if (unrolled == 1) {
      add_channels<1>(a, place, channels, window, weights, accumulators);
    } else if (unrolled == 3) {
      add_channels<3>(a, place, channels, window, weights, accumulators);
    } else if (unrolled == 5) {
      add_channels<5>(a, place, channels, window, weights, accumulators);
    } else if (unrolled == 7) {
      add_channels<7>(a, place, channels, window, weights, accumulators);
    } else {
      add_channels<0>(a, place, channels, window, weights, accumulators);
    }
  }

  __syncthreads();
  Sum* const results = window;
  if (is_at_work) {
#pragma unroll
    for (int k = 0; k < kFilters; ++k) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int filter = place.split * a.filters_of_block + place.filter + k;
        const int at = (filter * a.rows + place.row + i) * a.columns + place.column;
#pragma unroll
        for (int j = 0; j < kColumns; ++j) results[at + j * across] = accumulators.of[k][i][j];
      }
    }
  }
  __syncthreads();
  write_results(a, results, image_plane, first_filter, filters, tile_row, tile_column);
}

}  // namespace convswap::tiled
