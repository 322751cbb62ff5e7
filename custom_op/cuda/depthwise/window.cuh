#pragma once

// Where a block of the kernel of depthwise stands, and the parts of its shared memory.

#include "cuda/depthwise/arguments.h"
#include "cuda/primitives/global_memory.cuh"
#include "cuda/primitives/shared_memory.cuh"
#include "cuda/primitives/small_float_pairs.cuh"

namespace convswap::depthwise {

// Where a block stands: its first plane, row and column of the output.
struct Tile {
  int plane, row, column;

  template <typename T>
  __device__ explicit Tile(const Arguments<T>& a) {
    const unsigned line = a.tiles_across.quotient_of_any(blockIdx.x);
    column = static_cast<int>(blockIdx.x - line * a.tiles_across.divisor) * a.tile_columns;
    const unsigned group = a.tiles_down.quotient_of_any(line);
    row = static_cast<int>(line - group * a.tiles_down.divisor) * a.tile_rows;
    plane = static_cast<int>(group) * a.block_planes;
  }
};

// The parts of shared memory.
struct BlockMemory {
  long long* sources;  // where each plane of the window begins in x; -1 where it is all padding
  float* window;
  float* weights;  // of the filter of each plane
  float* bias;     // one of each plane

  template <typename T>
  __device__ BlockMemory(const Arguments<T>& a, float* shared) {
    sources = reinterpret_cast<long long*>(shared);
    window = shared + source_words(a.block_planes * a.filter_depth);
    weights = window + a.window_words;
    bias = weights + a.block_planes * static_cast<int>(a.taps.divisor);
  }
};

// Of a plane of the output: its image, filter and depth.
struct PlaneNumbers {
  int image, filter, depth;

  template <typename T>
  __device__ PlaneNumbers(const Arguments<T>& a, int plane) {
    const int row = static_cast<int>(a.output_depth.quotient_of_any(plane));
    depth = plane - row * static_cast<int>(a.output_depth.divisor);
    image = static_cast<int>(a.image_filters.quotient_of_any(row));
    filter = row - image * static_cast<int>(a.image_filters.divisor);
  }
};

// The part of x that a block needs, brought to shared memory with zeros around the image.

// Neighbouring columns as they lie in x, and as float32.
template <typename T, int kCount>
struct Columns;

template <>
struct Columns<float, 1> {
  using Words = unsigned;
  static __device__ unsigned numbers(unsigned word) { return word; }
};
template <>
struct Columns<float, 2> {
  using Words = uint2;
  static __device__ uint2 numbers(uint2 words) { return words; }
};
template <>
struct Columns<float, 4> {
  using Words = uint4;
  static __device__ uint4 numbers(uint4 words) { return words; }
};
template <typename Small>
struct Columns<Small, 1> {
  using Words = unsigned short;
  static __device__ unsigned numbers(unsigned short word) { return __float_as_uint(unpack_low<Small>(word)); }
};
template <typename Small>
struct Columns<Small, 2> {
  using Words = unsigned;
  static __device__ uint2 numbers(unsigned pair) {
    return make_uint2(__float_as_uint(unpack_low<Small>(pair)), __float_as_uint(unpack_high<Small>(pair)));
  }
};
template <typename Small>
struct Columns<Small, 4> {
  using Words = uint2;
  static __device__ uint4 numbers(uint2 pairs) {
    const uint2 first = Columns<Small, 2>::numbers(pairs.x), second = Columns<Small, 2>::numbers(pairs.y);
    return make_uint4(first.x, first.y, second.x, second.y);
  }
};

// Brings the window of planes that follow each other in x, so many loads of a thread at a time, so that their
// latencies overlap. A thread walks through lines that are equally far apart, both in x and in the window,
// but for where a plane ends.
template <int kTogether, typename T>
__device__ inline void load_following_planes(const Arguments<T>& a, const Tile& tile,
                                             const BlockMemory& memory) {
  using Loaded = Columns<T, kTogether>;
  constexpr int kAtATime = kTogether * sizeof(T) == 16 ? 4 : 8;
  int line = static_cast<int>(a.window_loads.quotient(threadIdx.x));
  if (line >= a.lines_together) return;
  const int left = static_cast<int>(threadIdx.x - line * a.window_loads.divisor) * kTogether;
  const int column = tile.column * a.stride_width - a.pad_width - a.window_left + left;
  // Of a column beyond the image no row is inside.
  const unsigned height = column >= 0 && column < a.input_width ? a.input_height : 0;
  const int rows = static_cast<int>(a.window_rows.divisor);
  const int lines = min(a.block_planes, a.planes - tile.plane) * rows;
  const int plane = static_cast<int>(a.window_rows.quotient(line));
  int row = tile.row * a.stride_height - a.pad_height + line - plane * rows;  // of the image
  const int end = tile.row * a.stride_height - a.pad_height + rows;
  int from = plane * (a.input_height * a.input_width) + row * a.input_width;
  const unsigned long long first =
      global_address(a.x + static_cast<long long>(tile.plane) * (a.input_height * a.input_width) + column);
  unsigned to = plane * a.window_plane + (line - plane * rows) * a.window_pitch + left;
  const SharedAddress window = shared_address(memory.window);
#pragma unroll 1
  while (line < lines) {
    const int first_line = line;
    typename Loaded::Words words[kAtATime];
    unsigned places[kAtATime];
#pragma unroll
    for (int j = 0; j < kAtATime; ++j) {
      words[j] = typename Loaded::Words{};
      const bool is_line = line < lines;
      places[j] = to;
      load_global_if(is_line & (static_cast<unsigned>(row) < height),
                     first + static_cast<long long>(from) * int(sizeof(T)), words[j]);
      line += a.lines_together, row += a.next_row, to += a.next_in_window, from += a.next_in_x;
      if (row >= end) row -= rows, to += a.beyond_in_window, from += a.beyond_in_x;
    }
#pragma unroll
    for (int j = 0; j < kAtATime; ++j) {
      store_shared_at_if(first_line + j * a.lines_together < lines, window + 4 * places[j],
                         Loaded::numbers(words[j]));
    }
  }
}

// Where the plane of x begins that a plane of the output needs for one tap of the depth.
template <typename T>
__device__ inline long long source_of(const Arguments<T>& a, int plane, int tap) {
  if (plane >= a.planes) return -1;
  const PlaneNumbers numbers(a, plane);
  const int channel = static_cast<int>(a.multiplier.quotient_of_any(numbers.filter));
  const int depth = numbers.depth * a.stride_depth + tap * a.dilation_depth - a.pad_depth;
  if (depth < 0 || depth >= a.input_depth) return -1;
  const long long index =
      (static_cast<long long>(numbers.image) * a.in_channels + channel) * a.input_depth + depth;
  return index * (a.input_height * a.input_width);
}

// Brings a window of planes anywhere in x.
template <typename T>
__device__ inline void load_any_planes(const Arguments<T>& a, const Tile& tile, const BlockMemory& memory) {
  const int threads = static_cast<int>(blockDim.x);
  for (int i = static_cast<int>(threadIdx.x); i < a.block_planes * a.filter_depth; i += threads) {
    const int plane = static_cast<int>(a.depth_taps.quotient(i));
    memory.sources[i] = source_of(a, tile.plane + plane, i - plane * a.filter_depth);
  }
  __syncthreads();
  const int rows = static_cast<int>(a.window_rows.divisor);
  const int columns = static_cast<int>(a.window_columns.divisor);
  const int first_row = tile.row * a.stride_height - a.pad_height;
  const int first_column = tile.column * a.stride_width - a.pad_width - a.window_left;
  const int count = a.block_planes * a.filter_depth * rows * columns;
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x); i < count; i += threads) {
    const int line = static_cast<int>(a.window_columns.quotient(i)), column = i - line * columns;
    const int plane = static_cast<int>(a.window_rows.quotient(line)), row = line - plane * rows;
    const int h = first_row + row, v = first_column + column;
    const long long source = memory.sources[plane];
    float value = 0;
    if (source >= 0 && h >= 0 && h < a.input_height && v >= 0 && v < a.input_width) {
      value = static_cast<float>(a.x[source + (static_cast<long long>(h) * a.input_width + v)]);
    }
    memory.window[plane * a.window_plane + row * a.window_pitch + column] = value;
  }
}

template <typename T>
__device__ inline void load_window(const Arguments<T>& a, const Tile& tile, const BlockMemory& memory) {
  if (!a.is_flat) {
    load_any_planes(a, tile, memory);
  } else if (a.together == 4) {
    load_following_planes<4>(a, tile, memory);
  } else if (a.together == 2) {
    load_following_planes<2>(a, tile, memory);
  } else {
    load_following_planes<1>(a, tile, memory);
  }
}

// The filters of a block's planes, brought to shared memory.

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
