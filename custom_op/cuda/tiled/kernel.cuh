#pragma once

// The kernel of tiled; see tiled.cc.

#include "conv/epilogue_math.h"
#include "conv/small_floats.h"  // the element types of the instances' names
#include "cuda/primitives/dependent_launch.cuh"
#include "cuda/primitives/global_memory.cuh"
#include "cuda/primitives/naive_conv.cuh"
#include "cuda/tiled/arguments.h"

namespace convswap::tiled {

extern __shared__ __align__(16) float shared[];

// Copies `count` elements to shared memory. Each thread has four loads in flight, so that their latencies
// overlap.
template <typename Sum, typename Load, typename Store>
__device__ inline void stage(int count, Load load, Store store) {
  constexpr int kLoadsInFlight = 4;
  const int threads = static_cast<int>(blockDim.x);
  for (int first = static_cast<int>(threadIdx.x); first < count; first += kLoadsInFlight * threads) {
    Sum values[kLoadsInFlight];
#pragma unroll
    for (int j = 0; j < kLoadsInFlight; ++j) {
      const int i = first + j * threads;
      values[j] = i < count ? load(i) : Sum(0);
    }
#pragma unroll
    for (int j = 0; j < kLoadsInFlight; ++j) {
      const int i = first + j * threads;
      if (i < count) store(i, values[j]);
    }
  }
}

// Stages `channels` channels from `first_channel` on: the tile's receptive field, with zeros for padding, and
// the weights of `filters` filters. One index space covers both, so that small tiles load both at once.
//
// Weights are transposed: taps are adjacent in w, filters are adjacent in smem. A warp takes 8 taps of 4
// filters, which are complete sectors in global memory and 32 different banks in smem.
template <typename T, typename Sum>
__device__ inline void stage_channels(const Arguments<T>& a, const T* x, const T* w, int first_channel,
                                      int channels, int filters, int depth, int first_row, int first_column,
                                      Sum* window, Sum* weights) {
  const auto pixel_position = [&](int i, int& channel, int& row, int& column) {
    channel = static_cast<int>(a.window_size.quotient(i));
    const int pixel = i - channel * static_cast<int>(a.window_size.divisor);
    row = static_cast<int>(a.window_width.quotient(pixel));
    column = pixel - row * static_cast<int>(a.window_width.divisor);
  };
  const auto weight_position = [&](int i, int& tap, int& filter) {
    const int group = i / 32;
    const int tap_group = static_cast<int>(a.filter_quads.quotient(group));
    tap = tap_group * 8 + i % 8;
    filter = (group - tap_group * static_cast<int>(a.filter_quads.divisor)) * 4 + i / 8 % 4;
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
          weight_position(i - weights_begin, tap, filter);
          return tap < taps && filter < filters ? static_cast<Sum>(w[filter * taps_of_filter + tap]) : Sum(0);
        }
        int channel, row, column;
        pixel_position(i, channel, row, column);
        row += first_row, column += first_column;
        bool is_inside =
            i < pixels && row >= 0 && row < a.input_height && column >= 0 && column < a.input_width;
        int plane = first_channel + channel;
        if (a.has_depth) {
          const int input_channel = static_cast<int>(a.depth_taps.quotient_of_any(plane));
          const int tap = plane - input_channel * static_cast<int>(a.depth_taps.divisor);
          const int d = depth * a.stride_depth + tap * a.dilation_depth - a.pad_depth;
          is_inside = is_inside && d >= 0 && d < a.input_depth;
          plane = input_channel * a.input_depth + d;
        }
        return is_inside ? static_cast<Sum>(x[(plane * a.input_height + row) * a.input_width + column])
                         : Sum(0);
      },
      [&](int i, Sum value) {
        if (i >= weights_begin) {
          int tap, filter;
          weight_position(i - weights_begin, tap, filter);
          if (tap < taps) weights[tap * a.weight_pitch + filter] = value;
        } else if (i < pixels) {
          int channel, row, column;
          pixel_position(i, channel, row, column);
          window[channel * a.window_plane + row * a.window_pitch + column] = value;
        }
      });
}

// A thread's accumulators: 2 rows by kColumns pixels for each of its filters. Columns of adjacent threads are
// interleaved, so that adjacent threads read adjacent pixels.
template <typename Sum, int kFilters, int kColumns>
struct Accumulators {
  Sum values[kFilters][2][kColumns] = {};

  __device__ void add_tap(const Sum* pixels, int row_step, int column_step, const Sum* taps) {
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
        const Sum pixel = pixels[i * row_step + j * column_step];
#pragma unroll
        for (int k = 0; k < kFilters; ++k) values[k][i][j] += pixel * tap[k];
      }
    }
  }

  // Adds one filter row of one channel. kTaps is the row's number of taps without dilation; 0 means `count`
  // taps with `dilation`.
  template <int kTaps>
  __device__ void add_row(const Sum* pixels, int row_step, int column_step, const Sum* taps, int pitch,
                          int count, int dilation) {
    if constexpr (kTaps == 0) {
#pragma unroll 1
      for (int s = 0; s < count; ++s) {
        add_tap(pixels + s * dilation, row_step, column_step, taps + s * pitch);
      }
    } else {
#pragma unroll
      for (int s = 0; s < kTaps; ++s) add_tap(pixels + s, row_step, column_step, taps + s * pitch);
    }
  }
};

__device__ inline void divide(const FastDivisor& divisor, int n, int& quotient, int& remainder) {
  quotient = static_cast<int>(divisor.quotient_of_any(n));
  remainder = n - quotient * static_cast<int>(divisor.divisor);
}

// First row, column and filter of a thread's outputs in the tile, and its split. Split i takes filter rows i,
// i + splits, i + 2 * splits, ...
struct ThreadPosition {
  int row, column, filter, split;
};

// Adds the filter rows of a thread's split in a stage of `channels` channels.
template <int kTaps, typename T, typename Sum, int kFilters, int kColumns>
__device__ inline void add_channels(const Arguments<T>& a, const ThreadPosition& position, int channels,
                                    const Sum* window, const Sum* weights,
                                    Accumulators<Sum, kFilters, kColumns>& accumulators) {
  const Sum* const corner =
      window + position.row * a.stride_height * a.window_pitch + position.column * a.stride_width;
  const int row_step = a.stride_height * a.window_pitch;
  const int column_step = a.columns / kColumns * a.stride_width;
#pragma unroll 1
  for (int u = position.split; u < channels * a.filter_height; u += a.splits) {
    const int c = static_cast<int>(a.filter_height_divisor.quotient(u)), r = u - c * a.filter_height;
    accumulators.template add_row<kTaps>(corner + c * a.window_plane + r * a.dilation_height * a.window_pitch,
                                         row_step, column_step,
                                         weights + u * a.filter_width * a.weight_pitch + position.filter,
                                         a.weight_pitch, a.filter_width, a.dilation_width);
  }
}

// Partial sums of a tile in shared memory: splits x filters x rows x columns.
template <typename T, typename Sum>
struct TileResults {
  const Arguments<T>& a;
  const Sum* partial_sums;
  int outputs_per_filter, outputs_per_split;

  __device__ TileResults(const Arguments<T>& arguments, const Sum* sums)
      : a(arguments),
        partial_sums(sums),
        outputs_per_filter(a.rows * a.columns),
        outputs_per_split(a.block_filters * outputs_per_filter) {}

  __device__ Sum reduce(int index) const {
    Sum sum = partial_sums[index];
#pragma unroll 1
    for (int s = 1; s < a.splits; ++s) sum += partial_sums[s * outputs_per_split + index];
    return sum;
  }
};

// A function call, not inlined: the copies would be most of the kernel's code, which the first blocks have to
// fetch.
template <typename Sum>
__device__ __noinline__ Sum activate_by_call(const Epilogue& epilogue, Sum value) {
  return activate<Sum>(epilogue.activation, epilogue.alpha, epilogue.beta, value);
}
// Applies the activation. No activation and ReLU are both a maximum with a floor, of -infinity or 0.
template <typename Sum>
struct Activate {
  const Epilogue& epilogue;
  bool is_floored;
  Sum floor;

  __device__ explicit Activate(const Epilogue& parameters)
      : epilogue(parameters),
        is_floored(convswap::is_relu_or_none(parameters)),
        floor(parameters.activation == Activation::relu ? Sum(0)
                                                        : -static_cast<Sum>(__int_as_float(0x7f800000))) {}

  // The comparison is false for NaN, so that NaN propagates.
  __device__ Sum operator()(Sum value) const {
    return !is_floored ? activate_by_call(epilogue, value) : value < floor ? floor : value;
  }
};

// Filter of an output in the tile, and the output's offset in y.
struct OutputPosition {
  int filter;
  long long offset;
  bool exists;

  // `first` is the offset in y of the tile's first output. `rows` and `columns` count from there to the end
  // of the plane.
  template <typename T>
  __device__ OutputPosition(const Arguments<T>& a, int outputs_per_filter, int index, long long first,
                            int rows, int columns) {
    filter = static_cast<int>(a.tile_y_plane.quotient(index));
    const int pixel = index - filter * outputs_per_filter;
    const int row = static_cast<int>(a.tile_y_columns.quotient(pixel)), column = pixel - row * a.columns;
    exists = row < rows && column < columns;
    // output_plane includes all depths.
    offset = first + static_cast<long long>(filter) * a.output_plane + (row * a.output_width + column);
  }
};

// Stores the outputs of a tile. Each thread has the loads of four outputs in flight, so that their latencies
// overlap. Not inlined, so that small tiles do not fetch its code.
template <typename T, typename Sum>
__device__ __noinline__ void write_many_outputs(const Arguments<T>& a, const Sum* partial_sums,
                                                long long first, int first_filter, int filters, int rows,
                                                int columns) {
  constexpr int kOutputsInFlight = 4;
  const TileResults<T, Sum> tile_results(a, partial_sums);
  const Activate<Sum> activate(a.epilogue);
  const int count = filters * tile_results.outputs_per_filter, threads = static_cast<int>(blockDim.x);
  for (int begin = static_cast<int>(threadIdx.x); begin < count; begin += kOutputsInFlight * threads) {
    Sum values[kOutputsInFlight];
    long long offsets[kOutputsInFlight];
    bool exist[kOutputsInFlight];
#pragma unroll
    for (int j = 0; j < kOutputsInFlight; ++j) {
      const int i = begin + j * threads;
      const OutputPosition position(a, tile_results.outputs_per_filter, i, first, rows, columns);
      offsets[j] = position.offset, exist[j] = i < count && position.exists;
      values[j] = Sum(0);
      if (!exist[j]) continue;
      values[j] = tile_results.reduce(i);
      if (a.b != nullptr) values[j] += static_cast<Sum>(a.b[first_filter + position.filter]);
      if (a.z != nullptr) values[j] += static_cast<Sum>(a.z[position.offset]);
    }
#pragma unroll
    for (int j = 0; j < kOutputsInFlight; ++j) {
      const Sum value = activate(values[j]);
      if (exist[j]) a.y[offsets[j]] = static_cast<T>(value);
    }
  }
}

// Reduces the partial sums of a tile, applies bias, residual and activation, pools, and stores y.
template <typename T, typename Sum>
__device__ inline void write_pooled(const Arguments<T>& a, const TileResults<T, Sum>& tile_results,
                                    long long first_plane, int first_filter, int filters, int tile_row,
                                    int tile_column) {
  const Epilogue& epilogue = a.epilogue;
  const Pool& pool = epilogue.pool;
  const int y_plane = static_cast<int>(a.tile_y_plane.divisor),
            y_columns = static_cast<int>(a.tile_y_columns.divisor);
  const int first_row = tile_row * a.rows, first_column = tile_column * a.columns;
  const int first_y_row = tile_row * a.tile_y_rows, first_y_column = tile_column * y_columns;
  for (int i = static_cast<int>(threadIdx.x); i < filters * y_plane; i += static_cast<int>(blockDim.x)) {
    const int k = static_cast<int>(a.tile_y_plane.quotient(i)), pixel = i - k * y_plane;
    const int row_of_tile = static_cast<int>(a.tile_y_columns.quotient(pixel));
    const int y_row = first_y_row + row_of_tile;
    const int y_column = first_y_column + pixel - row_of_tile * y_columns;
    if (y_row >= a.y_height || y_column >= a.y_width) continue;
    const long long plane =
        first_plane + static_cast<long long>(k) * static_cast<int>(a.output_depth.divisor);
    const Sum bias = a.b == nullptr ? Sum(0) : static_cast<Sum>(a.b[first_filter + k]);
    const auto value_at = [&](int64_t row, int64_t column) {
      Sum value = tile_results.reduce(k * tile_results.outputs_per_filter +
                                      (static_cast<int>(row) - first_row) * a.columns +
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

// Most outputs per thread that are stored one at a time, by inlined code.
constexpr int kMaxInlineOutputs = 4;

// Reduces the partial sums of a tile, applies the epilogue, and stores y.
template <typename T, typename Sum>
__device__ inline void write_results(const Arguments<T>& a, const Sum* partial_sums, int image_plane,
                                     int first_filter, int filters, int tile_row, int tile_column) {
  int n, depth;
  divide(a.output_depth, image_plane, n, depth);
  const long long first_plane =
      (static_cast<long long>(n) * a.out_channels + first_filter) * static_cast<int>(a.output_depth.divisor) +
      depth;
  const TileResults<T, Sum> tile_results(a, partial_sums);
  if (a.epilogue.pool.kind != PoolKind::none) {
    write_pooled(a, tile_results, first_plane, first_filter, filters, tile_row, tile_column);
    return;
  }
  const int row = tile_row * a.rows, column = tile_column * a.columns;
  const long long first = (first_plane * a.output_height + row) * a.output_width + column;
  const int rows = a.output_height - row, columns = a.output_width - column;
  const int count = filters * tile_results.outputs_per_filter, threads = static_cast<int>(blockDim.x);
  if (count > kMaxInlineOutputs * threads) {
    write_many_outputs(a, partial_sums, first, first_filter, filters, rows, columns);
    return;
  }
  const Activate<Sum> activate(a.epilogue);
  for (int i = static_cast<int>(threadIdx.x); i < count; i += threads) {
    const OutputPosition position(a, tile_results.outputs_per_filter, i, first, rows, columns);
    if (!position.exists) continue;
    Sum value = tile_results.reduce(i);
    if (a.b != nullptr) value += static_cast<Sum>(a.b[first_filter + position.filter]);
    if (a.z != nullptr) value += static_cast<Sum>(a.z[position.offset]);
    a.y[position.offset] = static_cast<T>(activate(value));
  }
}

// Minimum blocks of kMaxThreads threads per multiprocessor, for __launch_bounds__. Without it the compiler
// takes fewer registers than there are, and sometimes spills.
constexpr int min_blocks_per_sm(int result_registers) {
  return result_registers <= 4 ? 5 : result_registers <= 16 ? 4 : result_registers <= 32 ? 3 : 2;
}

template <typename T, int kFilters, int kColumns>
__global__ void __launch_bounds__(kMaxThreads, min_blocks_per_sm(2 * kFilters * kColumns *
                                                                 sizeof(typename AccumulatorOf<T>::Type) / 4))
    kernel(const __grid_constant__ Arguments<T> a) {
  using Sum = typename AccumulatorOf<T>::Type;
  int tile_line, tile_row, tile_column, image_plane, group, filter_block;
  divide(a.tiles_across, static_cast<int>(blockIdx.x), tile_line, tile_column);
  divide(a.tiles_down, tile_line, image_plane, tile_row);
  divide(a.filter_blocks, static_cast<int>(blockIdx.y), group, filter_block);
  const int first_row = tile_row * a.rows, first_column = tile_column * a.columns;
  const int first_block_filter = filter_block * a.block_filters;
  const int first_filter = group * a.filters + first_block_filter;
  const int filters = min(a.block_filters, a.filters - first_block_filter);
  const int taps = a.filter_height * a.filter_width;

  const int thread = static_cast<int>(threadIdx.x), across = static_cast<int>(a.threads_across.divisor);
  ThreadPosition position;
  int thread_group, pixel_of_tile, filter_of_tile;
  divide(a.threads_per_filter_tile, thread, thread_group, pixel_of_tile);
  divide(a.threads_across, pixel_of_tile, position.row, position.column);
  divide(a.threads_across_filters, thread_group, position.split, filter_of_tile);
  position.row *= 2, position.filter = filter_of_tile * kFilters;
  const bool computes = position.split < a.splits;

  griddepcontrol_wait();
  // Biases are added last, when waiting for them would cost most.
  if (a.b != nullptr && thread < filters) prefetch_l1(a.b + first_filter + thread);
  Sum* const window = reinterpret_cast<Sum*>(shared);
  Sum* const weights = window + a.channels_per_stage * a.window_plane;
  Accumulators<Sum, kFilters, kColumns> accumulators;
  for (int first_channel = 0; first_channel < a.channels; first_channel += a.channels_per_stage) {
    const int channels = min(a.channels_per_stage, a.channels - first_channel);
    int n, depth;  // recomputed in each iteration to save registers
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
    if (!computes) continue;
    const int unrolled = a.dilation_width == 1 ? a.filter_width : 0;
    if (unrolled == 1) {
      add_channels<1>(a, position, channels, window, weights, accumulators);
    } else if (unrolled == 3) {
      add_channels<3>(a, position, channels, window, weights, accumulators);
    } else if (unrolled == 5) {
      add_channels<5>(a, position, channels, window, weights, accumulators);
    } else if (unrolled == 7) {
      add_channels<7>(a, position, channels, window, weights, accumulators);
    } else {
      add_channels<0>(a, position, channels, window, weights, accumulators);
    }
  }

  __syncthreads();
  Sum* const partial_sums = window;
  if (computes) {
#pragma unroll
    for (int k = 0; k < kFilters; ++k) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int filter = position.split * a.block_filters + position.filter + k;
        const int index = (filter * a.rows + position.row + i) * a.columns + position.column;
#pragma unroll
        for (int j = 0; j < kColumns; ++j) partial_sums[index + j * across] = accumulators.values[k][i][j];
      }
    }
  }
  __syncthreads();
  write_results(a, partial_sums, image_plane, first_filter, filters, tile_row, tile_column);
}

}  // namespace convswap::tiled
