#pragma once

// Loads the window and the filters of a block of depthwise into shared memory.

#include "cuda/depthwise/arguments.h"
#include "cuda/primitives/global_memory.cuh"
#include "cuda/primitives/shared_memory.cuh"
#include "cuda/primitives/small_float_pairs.cuh"

namespace convswap::depthwise {

// First plane, row and column of a block's tile of the output.
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

// Arrays in a block's shared memory.
struct BlockMemory {
  long long* plane_offsets;  // offset in x of each plane of the window; -1 if the plane is padding
  float* window;
  float* weights;  // the filter of each output plane
  float* bias;     // of each output plane

  template <typename T>
  __device__ BlockMemory(const Arguments<T>& a, float* shared) {
    plane_offsets = reinterpret_cast<long long*>(shared);
    window = shared + plane_offset_words(a.block_planes * a.filter_depth);
    weights = window + a.window_words;
    bias = weights + a.block_planes * static_cast<int>(a.taps.divisor);
  }
};

// Image, filter and depth of an output plane.
struct PlaneIndices {
  int image, filter, depth;

  template <typename T>
  __device__ PlaneIndices(const Arguments<T>& a, int plane) {
    const int row = static_cast<int>(a.output_depth.quotient_of_any(plane));
    depth = plane - row * static_cast<int>(a.output_depth.divisor);
    image = static_cast<int>(a.filters_per_image.quotient_of_any(row));
    filter = row - image * static_cast<int>(a.filters_per_image.divisor);
  }
};

// A vector load of kCount adjacent columns of x, and their conversion to the bits of float32.
template <typename T, int kCount>
struct ColumnVector;

template <>
struct ColumnVector<float, 1> {
  using Words = unsigned;
  static __device__ unsigned to_float_bits(unsigned word) { return word; }
};
template <>
struct ColumnVector<float, 2> {
  using Words = uint2;
  static __device__ uint2 to_float_bits(uint2 words) { return words; }
};
template <>
struct ColumnVector<float, 4> {
  using Words = uint4;
  static __device__ uint4 to_float_bits(uint4 words) { return words; }
};
template <typename Small>
struct ColumnVector<Small, 1> {
  using Words = unsigned short;
  static __device__ unsigned to_float_bits(unsigned short word) {
    return __float_as_uint(unpack_low<Small>(word));
  }
};
template <typename Small>
struct ColumnVector<Small, 2> {
  using Words = unsigned;
  static __device__ uint2 to_float_bits(unsigned pair) {
    return make_uint2(__float_as_uint(unpack_low<Small>(pair)), __float_as_uint(unpack_high<Small>(pair)));
  }
};
template <typename Small>
struct ColumnVector<Small, 4> {
  using Words = uint2;
  static __device__ uint4 to_float_bits(uint2 pairs) {
    const uint2 first = ColumnVector<Small, 2>::to_float_bits(pairs.x),
                second = ColumnVector<Small, 2>::to_float_bits(pairs.y);
    return make_uint4(first.x, first.y, second.x, second.y);
  }
};

// Loads a window whose planes are contiguous in x. A thread has kLoadsInFlight loads in flight, so that their
// latencies overlap. Steps from one line to the next are constant in x and in the window, except between
// planes.
template <int kVectorColumns, typename T>
__device__ inline void load_contiguous_planes(const Arguments<T>& a, const Tile& tile,
                                              const BlockMemory& memory) {
  using Vector = ColumnVector<T, kVectorColumns>;
  constexpr int kLoadsInFlight = kVectorColumns * sizeof(T) == 16 ? 4 : 8;
  int line = static_cast<int>(a.window_loads.quotient(threadIdx.x));
  if (line >= a.line_step) return;
  const int left = static_cast<int>(threadIdx.x - line * a.window_loads.divisor) * kVectorColumns;
  const int column = tile.column * a.stride_width - a.pad_width - a.alignment_columns + left;
  // Height 0 marks columns outside the image.
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
    typename Vector::Words words[kLoadsInFlight];
    unsigned offsets[kLoadsInFlight];
#pragma unroll
    for (int j = 0; j < kLoadsInFlight; ++j) {
      words[j] = typename Vector::Words{};
      const bool is_line = line < lines;
      offsets[j] = to;
      load_global_if(is_line & (static_cast<unsigned>(row) < height),
                     first + static_cast<long long>(from) * int(sizeof(T)), words[j]);
      line += a.line_step, row += a.row_step, to += a.window_step, from += a.x_step;
      if (row >= end) row -= rows, to += a.window_plane_gap, from += a.x_plane_gap;
    }
#pragma unroll
    for (int j = 0; j < kLoadsInFlight; ++j) {
      store_shared_at_if(first_line + j * a.line_step < lines, window + 4 * offsets[j],
                         Vector::to_float_bits(words[j]));
    }
  }
}

// Offset of the plane of x that an output plane reads at one tap along the depth; -1 for padding.
template <typename T>
__device__ inline long long plane_offset(const Arguments<T>& a, int plane, int tap) {
  if (plane >= a.planes) return -1;
  const PlaneIndices indices(a, plane);
  const int channel = static_cast<int>(a.filters_per_channel.quotient_of_any(indices.filter));
  const int depth = indices.depth * a.stride_depth + tap * a.dilation_depth - a.pad_depth;
  if (depth < 0 || depth >= a.input_depth) return -1;
  const long long index =
      (static_cast<long long>(indices.image) * a.in_channels + channel) * a.input_depth + depth;
  return index * (a.input_height * a.input_width);
}

// Loads a window whose planes may be anywhere in x.
template <typename T>
__device__ inline void load_scattered_planes(const Arguments<T>& a, const Tile& tile,
                                             const BlockMemory& memory) {
  const int threads = static_cast<int>(blockDim.x);
  for (int i = static_cast<int>(threadIdx.x); i < a.block_planes * a.filter_depth; i += threads) {
    const int plane = static_cast<int>(a.depth_taps.quotient(i));
    memory.plane_offsets[i] = plane_offset(a, tile.plane + plane, i - plane * a.filter_depth);
  }
  __syncthreads();
  const int rows = static_cast<int>(a.window_rows.divisor);
  const int columns = static_cast<int>(a.window_columns.divisor);
  const int first_row = tile.row * a.stride_height - a.pad_height;
  const int first_column = tile.column * a.stride_width - a.pad_width - a.alignment_columns;
  const int count = a.block_planes * a.filter_depth * rows * columns;
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x); i < count; i += threads) {
    const int line = static_cast<int>(a.window_columns.quotient(i)), column = i - line * columns;
    const int plane = static_cast<int>(a.window_rows.quotient(line)), row = line - plane * rows;
    const int h = first_row + row, v = first_column + column;
    const long long plane_begin = memory.plane_offsets[plane];
    float value = 0;
    if (plane_begin >= 0 && h >= 0 && h < a.input_height && v >= 0 && v < a.input_width) {
      value = static_cast<float>(a.x[plane_begin + (static_cast<long long>(h) * a.input_width + v)]);
    }
    memory.window[plane * a.window_plane + row * a.window_pitch + column] = value;
  }
}

template <typename T>
__device__ inline void load_window(const Arguments<T>& a, const Tile& tile, const BlockMemory& memory) {
  if (!a.is_contiguous) {
    load_scattered_planes(a, tile, memory);
  } else if (a.vector_columns == 4) {
    load_contiguous_planes<4>(a, tile, memory);
  } else if (a.vector_columns == 2) {
    load_contiguous_planes<2>(a, tile, memory);
  } else {
    load_contiguous_planes<1>(a, tile, memory);
  }
}

// Copies the filters and biases of a block's planes to shared memory. The constructor loads each thread's
// first element, so that its latency overlaps with the loads of the window.
template <typename T>
struct FilterLoader {
  const Arguments<T>& a;
  const Tile& tile;
  int count;
  T first_element;  // element threadIdx.x

  __device__ FilterLoader(const Arguments<T>& arguments, const Tile& block_tile)
      : a(arguments), tile(block_tile) {
    count = a.block_planes * (static_cast<int>(a.taps.divisor) + 1);
    first_element = element_at(static_cast<int>(threadIdx.x));
  }

  // Element i of the weights followed by the biases.
  __device__ T element_at(int i) const {
    if (i >= count) return T(0.0f);
    const int weights = a.block_planes * static_cast<int>(a.taps.divisor);
    const int plane = i < weights ? static_cast<int>(a.taps.quotient(i)) : i - weights;
    if (tile.plane + plane >= a.planes) return T(0.0f);
    const long long filter = PlaneIndices(a, tile.plane + plane).filter;
    if (i >= weights) return a.b == nullptr ? T(0.0f) : a.b[filter];
    return a.w[filter * a.taps.divisor + (i - plane * static_cast<int>(a.taps.divisor))];
  }

  __device__ void store(const BlockMemory& memory) const {
    const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
    if (thread < count) memory.weights[thread] = static_cast<float>(first_element);
    for (int i = thread + threads; i < count; i += threads)
      memory.weights[i] = static_cast<float>(element_at(i));
  }
};

}  // namespace convswap::depthwise
