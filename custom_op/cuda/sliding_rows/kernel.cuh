#pragma once

// The kernel of sliding_rows; see sliding_rows.cc.

#include "conv/small_floats.h"  // the element types of the instances' names
#include "cuda/epilogue/activations.cuh"
#include "cuda/primitives/dependent_launch.cuh"
#include "cuda/primitives/global_memory.cuh"
#include "cuda/primitives/small_float_pairs.cuh"
#include "cuda/sliding_rows/arguments.h"

namespace convswap::sliding_rows {

// Position of a lane: its plane, the rows of its strip, and its columns. S is a StripShape.
template <typename S>
struct Lane {
  int lane, lane_in_row;  // index in the warp, and among the lanes of the same row
  int plane;
  int first_row, rows;              // of the output
  int output_column, input_column;  // first column of the lane's outputs and of its piece
  bool writes;                      // false for lanes that only pass columns to neighbours

  // All warps of a block have the same segment and strip. So the compiler knows that branches on either are
  // uniform in a warp.
  template <typename T>
  __device__ explicit Lane(const Arguments<T>& a) {
    const int segments = static_cast<int>(a.segments.divisor), lanes = static_cast<int>(a.lanes.divisor);
    const int line = static_cast<int>(a.segments.quotient_of_any(blockIdx.x));
    const int segment = static_cast<int>(blockIdx.x) - line * segments;
    const int block = static_cast<int>(a.strips.quotient_of_any(line));
    first_row = (line - block * static_cast<int>(a.strips.divisor)) * a.strip_rows;
    rows = min(a.strip_rows, a.output_height - first_row);

    lane = static_cast<int>(threadIdx.x) % kWarpSize;
    const int row = static_cast<int>(a.lanes.quotient(lane));
    lane_in_row = lane - row * lanes;
    const int warp = block * kWarpsPerBlock + static_cast<int>(threadIdx.x) / kWarpSize;
    plane = warp * a.warp_planes + row;
    const int piece = segment * a.segment_pieces + lane_in_row;
    output_column = piece * S::outputs;
    input_column = piece * S::piece_columns;

    const bool has_plane = row < a.warp_planes && plane < a.planes;
    const bool has_left_halo = segment == 0 || lane_in_row >= halo_lanes(S::left_halo, S::piece_columns);
    const bool has_right_halo =
        segment + 1 == segments || lane_in_row + halo_lanes(S::right_halo, S::piece_columns) < lanes;
    writes = has_plane && has_left_halo && has_right_halo && output_column < a.output_width;
    // A lane without a plane still takes part in shuffles, with zeros.
    if (!has_plane) plane = 0, input_column = a.input_width;
  }
};

// A vector load of kVectorColumns adjacent columns of x, and access to each as float32.
template <typename T, int kVectorColumns>
struct ColumnVector;

template <>
struct ColumnVector<float, 1> {
  using Words = unsigned;
  static __device__ float column(unsigned word, int) { return __uint_as_float(word); }
};
template <>
struct ColumnVector<float, 2> {
  using Words = uint2;
  static __device__ float column(uint2 words, int i) { return __uint_as_float(i == 0 ? words.x : words.y); }
};
template <>
struct ColumnVector<float, 4> {
  using Words = uint4;
  static __device__ float column(uint4 words, int i) {
    return __uint_as_float(i == 0 ? words.x : i == 1 ? words.y : i == 2 ? words.z : words.w);
  }
};
template <typename Small>
struct ColumnVector<Small, 1> {
  using Words = unsigned short;
  static __device__ float column(unsigned short word, int) { return unpack_low<Small>(word); }
};
template <typename Small>
struct ColumnVector<Small, 2> {
  using Words = unsigned;
  static __device__ float column(unsigned pair, int i) {
    return i == 0 ? unpack_low<Small>(pair) : unpack_high<Small>(pair);
  }
};
template <typename Small>
struct ColumnVector<Small, 4> {
  using Words = uint2;
  static __device__ float column(uint2 pairs, int i) {
    return ColumnVector<Small, 2>::column(i < 2 ? pairs.x : pairs.y, i % 2);
  }
};

// A lane's piece of a row of x: kColumns columns in registers, loaded kVectorColumns at a time.
template <typename T, int kColumns, int kVectorColumns>
struct RowPiece {
  typename ColumnVector<T, kVectorColumns>::Words words[kColumns / kVectorColumns];

  // Loads from an aligned address. The first `columns_inside` columns, a multiple of kVectorColumns, are in
  // the image; the others become 0.
  __device__ void load(unsigned long long address, int columns_inside) {
#pragma unroll
    for (int i = 0; i < kColumns / kVectorColumns; ++i) {
      words[i] = {};
      load_global_if(i * kVectorColumns < columns_inside, address + i * kVectorColumns * int(sizeof(T)),
                     words[i]);
    }
  }

  __device__ float column(int i) const {
    return ColumnVector<T, kVectorColumns>::column(words[i / kVectorColumns], i % kVectorColumns);
  }
};

// The columns of a row of x that a lane's outputs read: its piece, between halo columns from its neighbours.
template <typename S>
struct RowWindow {
  float columns[S::window_columns];

  // Called by all lanes of the warp. `lanes` is the number of lanes per row.
  template <typename Piece>
  __device__ RowWindow(const Piece& piece, const Lane<S>& lane, int lanes) {
#pragma unroll
    for (int i = 0; i < S::piece_columns; ++i) columns[S::left_halo + i] = piece.column(i);
#pragma unroll
    for (int i = 1; i <= S::left_halo; ++i) {  // columns before the piece's first
      const int distance = halo_lanes(i, S::piece_columns);
      const float sent = columns[S::left_halo + distance * S::piece_columns - i];
      const float column = __shfl_sync(~0u, sent, (lane.lane - distance) & (kWarpSize - 1));
      columns[S::left_halo - i] = lane.lane_in_row >= distance ? column : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < S::right_halo; ++i) {
      const int distance = halo_lanes(i + 1, S::piece_columns);
      const float sent = columns[S::left_halo + i - (distance - 1) * S::piece_columns];
      const float column = __shfl_sync(~0u, sent, (lane.lane + distance) & (kWarpSize - 1));
      columns[S::left_halo + S::piece_columns + i] = lane.lane_in_row + distance < lanes ? column : 0.0f;
    }
  }
};

__device__ inline unsigned bits_of(float value) { return __float_as_uint(value); }
template <typename Small>
__device__ inline unsigned bits_of(Small value) {
  return value.bits;
}

// Rounds two numbers to a 16-bit type and packs them into a word, the first in the lower half.
template <typename Small>
__device__ inline unsigned pack_pair(float first, float second) {
#if __CUDA_ARCH__ >= 800
  return pack_rounded<Small>(first, second);
#else
  return bits_of(Small(first)) | bits_of(Small(second)) << 16;
#endif
}

// Stores adjacent outputs with one instruction.
template <typename T>
__device__ inline void store_vector(bool condition, unsigned long long to, const float (&values)[2]) {
  if constexpr (kAreSame<T, float>) {
    store_global_if(condition, to, make_uint2(bits_of(values[0]), bits_of(values[1])));
  } else {
    store_global_if(condition, to, pack_pair<T>(values[0], values[1]));
  }
}
template <typename T>
__device__ inline void store_vector(bool condition, unsigned long long to, const float (&values)[4]) {
  if constexpr (kAreSame<T, float>) {
    const unsigned bits[] = {bits_of(values[0]), bits_of(values[1]), bits_of(values[2]), bits_of(values[3])};
    store_global_if(condition, to, make_uint4(bits[0], bits[1], bits[2], bits[3]));
  } else {
    store_global_if(condition, to,
                    make_uint2(pack_pair<T>(values[0], values[1]), pack_pair<T>(values[2], values[3])));
  }
}

// Adds the residual to a lane's outputs of one row, applies the activation, and stores them. `first` is the
// index in y of the first output; `columns_inside` outputs are in the image.
template <typename T, int kOutputs>
__device__ inline void write_row(const Arguments<T>& a, long long first, int columns_inside, bool condition,
                                 const float (&accumulators)[kOutputs]) {
  float values[kOutputs];
#pragma unroll
  for (int i = 0; i < kOutputs; ++i) values[i] = accumulators[i];
  if (a.z != nullptr) {
#pragma unroll
    for (int i = 0; i < kOutputs; ++i) {
      if (condition && i < columns_inside) values[i] += static_cast<float>(a.z[first + i]);
    }
  }
  apply_activation(a.epilogue, values);
  const unsigned long long to = global_address(a.y) + first * int(sizeof(T));
  if constexpr (kOutputs > 1) {
    if (a.vectorizes_stores) {
      store_vector<T>(condition, to, values);
      return;
    }
  }
#pragma unroll
  for (int i = 0; i < kOutputs; ++i) {
    const bool is_inside = condition && i < columns_inside;
    if constexpr (kAreSame<T, float>) {
      store_global_if(is_inside, to + 4 * i, bits_of(values[i]));
    } else {
      store_global_if(is_inside, to + 2 * i, T(values[i]).bits);
    }
  }
}

// The filter of a lane's plane, not yet converted to float32: a conversion would wait for the load.
template <typename T, typename S>
struct Filter {
  int number;
  T taps[S::taps * S::taps];

  __device__ Filter(const Arguments<T>& a, const Lane<S>& lane) {
    const int image = static_cast<int>(a.filters_per_image.quotient_of_any(lane.plane));
    number = lane.plane - image * static_cast<int>(a.filters_per_image.divisor);
    const T* const from = a.w + static_cast<long long>(number) * (S::taps * S::taps);
#pragma unroll
    for (int i = 0; i < S::taps * S::taps; ++i) taps[i] = from[i];
  }
};

// Computes a lane's strip from top to bottom. kPrefetchedRows rows of x are in flight; see prefetched_rows.
template <typename T, typename S, int kVectorColumns, int kPrefetchedRows>
class Strip {
 public:
  __device__ Strip(const Arguments<T>& arguments, const Lane<S>& lane, const Filter<T, S>& filter)
      : a_(arguments), lane_(lane) {
    first_row_ = lane_.first_row * S::stride - a_.pad_height;
    end_row_ = static_cast<unsigned>(max(0, min(first_row_ + input_rows(), a_.input_height)));
    const int source = static_cast<int>(a_.filters_per_channel.quotient_of_any(lane_.plane));
    const long long row = static_cast<long long>(source) * a_.input_height + first_row_;
    x_ = global_address(a_.x) + (row * a_.input_width + lane_.input_column) * int(sizeof(T));
#pragma unroll
    for (int i = 0; i < kPrefetchedRows; ++i) prefetch_row(i, prefetched_[i]);
    bias_ = a_.b == nullptr ? 0.0f : static_cast<float>(a_.b[filter.number]);
#pragma unroll
    for (int i = 0; i < S::taps * S::taps; ++i) {
      weights_[i / S::taps][i % S::taps] = static_cast<float>(filter.taps[i]);
    }
  }

  __device__ void run() {
    const int count = input_rows();
#pragma unroll 1
    for (int first = 0; first < count; first += kSteps) process_rows<0>(first, count);
  }

 private:
  static constexpr int kSteps =
      kPrefetchedRows > S::period ? kPrefetchedRows : S::period;  // a multiple of both

  // Number of rows in the strip's receptive field.
  __device__ int input_rows() const { return (lane_.rows - 1) * S::stride + S::taps; }

  // Issues the loads of a row, counted from the first row of the strip's receptive field.
  __device__ void prefetch_row(int number, RowPiece<T, S::piece_columns, kVectorColumns>& piece) const {
    const int row = first_row_ + number;
    const bool is_inside = static_cast<unsigned>(row) < end_row_;
    const long long offset = static_cast<long long>(number * a_.input_width) * int(sizeof(T));
    piece.load(x_ + offset, is_inside ? a_.input_width - lane_.input_column : 0);
  }

  // Processes rows first + kStep to first + kSteps - 1. Each row is added to the accumulators of all output
  // rows that it contributes to; the first row of an output row sets them to the bias. The last row of an
  // output row completes it, and it is stored.
  template <int kStep>
  __device__ void process_rows(int first, int count) {
    if constexpr (kStep < kSteps) {
      if (first + kStep >= count) return;
      RowPiece<T, S::piece_columns, kVectorColumns>& piece = prefetched_[kStep % kPrefetchedRows];
      const RowWindow<S> row(piece, lane_, static_cast<int>(a_.lanes.divisor));
      prefetch_row(first + kStep + kPrefetchedRows, piece);
#pragma unroll
      for (int r = kStep % S::stride; r < S::taps; r += S::stride) {
        float (&accumulators)[S::outputs] = accumulators_[slot_of((kStep - r) / S::stride)];
#pragma unroll
        for (int i = 0; i < S::outputs; ++i) {
          if (r == 0) accumulators[i] = bias_;
#pragma unroll
          for (int s = 0; s < S::taps; ++s)
            accumulators[i] += row.columns[i * S::stride + s] * weights_[r][s];
        }
      }
      constexpr int kFirstStep = kStep - (S::taps - 1);  // first step of the output row that ends here
      if constexpr ((kFirstStep + S::period) % S::stride == 0) {
        const int output = lane_.first_row + (first + kFirstStep) / S::stride;
        const bool is_in_strip = kFirstStep >= 0 || first > 0;
        const long long line = static_cast<long long>(lane_.plane) * a_.output_height + output;
        write_row(a_, line * a_.output_width + lane_.output_column, a_.output_width - lane_.output_column,
                  lane_.writes && is_in_strip, accumulators_[slot_of((kFirstStep + S::period) / S::stride)]);
      }
      process_rows<kStep + 1>(first, count);
    }
  }

  // Accumulator slot of an output row. `output` counts from a row whose first row of x begins a period.
  static constexpr __device__ int slot_of(int output) { return (output + S::accumulators) % S::accumulators; }

  const Arguments<T>& a_;
  const Lane<S>& lane_;
  unsigned end_row_;      // end of the receptive field's rows inside the image
  int first_row_;         // first row of the receptive field; negative in the padding
  unsigned long long x_;  // global address of the lane's piece of that row
  float weights_[S::taps][S::taps];
  float bias_;
  float accumulators_[S::accumulators][S::outputs] = {};
  RowPiece<T, S::piece_columns, kVectorColumns> prefetched_[kPrefetchedRows];
};

// Template parameters as in Instance (family.h).
template <typename T, int kTaps, int kStride, int kPadLeft, int kOutputs, int kVectorColumns>
__global__ void __launch_bounds__(kWarpsPerBlock* kWarpSize, min_blocks_per_sm(kTaps))
    kernel(const __grid_constant__ Arguments<T> a) {
  using S = StripShape<kTaps, kStride, kPadLeft, kOutputs>;
  const Lane<S> lane(a);
  griddepcontrol_wait_unless(a.weights_are_constant);
  const Filter<T, S> filter(a, lane);
  griddepcontrol_wait();
  if (kVectorColumns == 1 || a.vectorizes_loads) {
    Strip<T, S, kVectorColumns, prefetched_rows(kTaps, S::period, sizeof(T))> strip(a, lane, filter);
    griddepcontrol_launch_dependents();
    strip.run();
  } else {  // the user's x is not aligned for vector loads
    Strip<T, S, 1, 1> strip(a, lane, filter);
    griddepcontrol_launch_dependents();
    strip.run();
  }
}

}  // namespace convswap::sliding_rows
