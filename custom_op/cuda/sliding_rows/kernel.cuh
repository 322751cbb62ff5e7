#pragma once

// The kernel of sliding_rows; see sliding_rows.cc.

#include "conv/small_floats.h"  // what its instances are named by
#include "cuda/epilogue/activations.cuh"
#include "cuda/primitives/dependent_launch.cuh"
#include "cuda/primitives/global_memory.cuh"
#include "cuda/primitives/small_float_pairs.cuh"
#include "cuda/sliding_rows/arguments.h"

namespace convswap::sliding_rows {

// Where a lane of the kernel of sliding_rows stands.

template <typename S>
struct Lane {
  int lane, place;  // of the warp; among the lanes of its row
  int plane;
  int first_row, rows;       // of the output
  int column, piece_column;  // the first of the lane's, of the output and of x
  bool writes;

  // All warps of a block have the same segment and strip, so that the compiler knows that no branch which
  // depends on these parts the lanes of a warp.
  template <typename T>
  __device__ explicit Lane(const Arguments<T>& a) {
    const int segments = static_cast<int>(a.segments.divisor), lanes = static_cast<int>(a.lanes.divisor);
    const int line = static_cast<int>(a.segments.quotient_of_any(blockIdx.x));
    const int segment = static_cast<int>(blockIdx.x) - line * segments;
    const int block = static_cast<int>(a.strips.quotient_of_any(line));
    first_row = (line - block * static_cast<int>(a.strips.divisor)) * a.strip_rows;
    rows = min(a.strip_rows, a.output_height - first_row);

    lane = static_cast<int>(threadIdx.x) % kWarp;
    const int row = static_cast<int>(a.lanes.quotient(lane));
    place = lane - row * lanes;
    const int warp = block * kBlockWarps + static_cast<int>(threadIdx.x) / kWarp;
    plane = warp * a.warp_planes + row;
    const int piece = segment * a.segment_pieces + place;
    column = piece * S::outputs;
    piece_column = piece * S::piece;

    const bool is_there = row < a.warp_planes && plane < a.planes;
    const bool knows_left = segment == 0 || place >= lanes_beyond(S::left, S::piece);
    const bool knows_right = segment + 1 == segments || place + lanes_beyond(S::right, S::piece) < lanes;
    writes = is_there && knows_left && knows_right && column < a.output_width;
    // A lane without a plane takes part where the warp's lanes exchange columns, of zeros beyond an image.
    if (!is_there) plane = 0, piece_column = a.input_width;
  }
};

// Neighbouring columns of a row of x, in registers as they lie in memory.

// Columns that lie together, as one load has them.
template <typename T, int kTogether>
struct Together;

template <>
struct Together<float, 1> {
  using Words = unsigned;
  static __device__ float column(unsigned word, int) { return __uint_as_float(word); }
};
template <>
struct Together<float, 2> {
  using Words = uint2;
  static __device__ float column(uint2 words, int i) { return __uint_as_float(i == 0 ? words.x : words.y); }
};
template <>
struct Together<float, 4> {
  using Words = uint4;
  static __device__ float column(uint4 words, int i) {
    return __uint_as_float(i == 0 ? words.x : i == 1 ? words.y : i == 2 ? words.z : words.w);
  }
};
template <typename Small>
struct Together<Small, 1> {
  using Words = unsigned short;
  static __device__ float column(unsigned short word, int) { return unpack_low<Small>(word); }
};
template <typename Small>
struct Together<Small, 2> {
  using Words = unsigned;
  static __device__ float column(unsigned pair, int i) {
    return i == 0 ? unpack_low<Small>(pair) : unpack_high<Small>(pair);
  }
};
template <typename Small>
struct Together<Small, 4> {
  using Words = uint2;
  static __device__ float column(uint2 pairs, int i) {
    return Together<Small, 2>::column(i < 2 ? pairs.x : pairs.y, i % 2);
  }
};

// kColumns columns of a row of x, loaded kTogether at a time.
template <typename T, int kColumns, int kTogether>
struct Piece {
  typename Together<T, kTogether>::Words words[kColumns / kTogether];

  // From an aligned address, from which on `inside` columns are in the image, a multiple of kTogether; others
  // are 0.
  __device__ void load(unsigned long long address, int inside) {
#pragma unroll
    for (int i = 0; i < kColumns / kTogether; ++i) {
      words[i] = {};
      load_global_if(i * kTogether < inside, address + i * kTogether * int(sizeof(T)), words[i]);
    }
  }

  __device__ float column(int i) const {
    return Together<T, kTogether>::column(words[i / kTogether], i % kTogether);
  }
};

// A row of x as a lane needs it: its own piece between columns that its neighbours in the warp have.

template <typename S>
struct Row {
  float columns[S::needed];

  // All lanes of the warp at once. `lanes`: of a row.
  template <typename Piece>
  __device__ Row(const Piece& piece, const Lane<S>& at, int lanes) {
#pragma unroll
    for (int i = 0; i < S::piece; ++i) columns[S::left + i] = piece.column(i);
#pragma unroll
    for (int i = 1; i <= S::left; ++i) {  // columns before the piece's first
      const int away = lanes_beyond(i, S::piece);
      const float theirs = columns[S::left + away * S::piece - i];
      const float column = __shfl_sync(~0u, theirs, (at.lane - away) & (kWarp - 1));
      columns[S::left - i] = at.place >= away ? column : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < S::right; ++i) {
      const int away = lanes_beyond(i + 1, S::piece);
      const float theirs = columns[S::left + i - (away - 1) * S::piece];
      const float column = __shfl_sync(~0u, theirs, (at.lane + away) & (kWarp - 1));
      columns[S::left + S::piece + i] = at.place + away < lanes ? column : 0.0f;
    }
  }
};

// Results from the sums of a lane: residual, activation, and out they go.

__device__ inline unsigned bits_of(float value) { return __float_as_uint(value); }
template <typename Small>
__device__ inline unsigned bits_of(Small value) {
  return value.bits;
}

// Two of 16 bits as they lie in memory.
template <typename Small>
__device__ inline unsigned pair_of(float first, float second) {
#if __CUDA_ARCH__ >= 800
  return pack_rounded<Small>(first, second);
#else
  return bits_of(Small(first)) | bits_of(Small(second)) << 16;
#endif
}

// Stores neighbouring outputs together.
template <typename T>
__device__ inline void store_together(bool is_wanted, unsigned long long to, const float (&values)[2]) {
  if constexpr (kAreSame<T, float>) {
    store_global_if(is_wanted, to, make_uint2(bits_of(values[0]), bits_of(values[1])));
  } else {
    store_global_if(is_wanted, to, pair_of<T>(values[0], values[1]));
  }
}
template <typename T>
__device__ inline void store_together(bool is_wanted, unsigned long long to, const float (&values)[4]) {
  if constexpr (kAreSame<T, float>) {
    const unsigned bits[] = {bits_of(values[0]), bits_of(values[1]), bits_of(values[2]), bits_of(values[3])};
    store_global_if(is_wanted, to, make_uint4(bits[0], bits[1], bits[2], bits[3]));
  } else {
    store_global_if(is_wanted, to,
                    make_uint2(pair_of<T>(values[0], values[1]), pair_of<T>(values[2], values[3])));
  }
}

// Of a lane's sums in one row. `first`: the number in y of the first of them; of which the image has
// `inside`.
template <typename T, int kOutputs>
__device__ inline void write_row(const Arguments<T>& a, long long first, int inside, bool is_wanted,
                                 const float (&accumulators)[kOutputs]) {
  float values[kOutputs];
#pragma unroll
  for (int i = 0; i < kOutputs; ++i) values[i] = accumulators[i];
  if (a.z != nullptr) {
#pragma unroll
    for (int i = 0; i < kOutputs; ++i) {
      if (is_wanted && i < inside) values[i] += static_cast<float>(a.z[first + i]);
    }
  }
  apply_activation(a.following, values);
  const unsigned long long to = global_address(a.y) + first * int(sizeof(T));
  if constexpr (kOutputs > 1) {
    if (a.stores_together) {
      store_together<T>(is_wanted, to, values);
      return;
    }
  }
#pragma unroll
  for (int i = 0; i < kOutputs; ++i) {
    const bool is_inside = is_wanted && i < inside;
    if constexpr (kAreSame<T, float>) {
      store_global_if(is_inside, to + 4 * i, bits_of(values[i]));
    } else {
      store_global_if(is_inside, to + 2 * i, T(values[i]).bits);
    }
  }
}

// A lane's way down: outputs of neighbouring columns, row by row.

// The filter of a lane's plane, as it lies in memory: whatever was done to it at once would wait for it.
template <typename T, typename S>
struct Filter {
  int number;
  T taps[S::taps * S::taps];

  __device__ Filter(const Arguments<T>& a, const Lane<S>& at) {
    const int image = static_cast<int>(a.image_filters.quotient_of_any(at.plane));
    number = at.plane - image * static_cast<int>(a.image_filters.divisor);
    const T* const from = a.w + static_cast<long long>(number) * (S::taps * S::taps);
#pragma unroll
    for (int i = 0; i < S::taps * S::taps; ++i) taps[i] = from[i];
  }
};

// kTogether: columns that are one load; kAhead: rows that are asked for before their use, 1 or whole periods.
template <typename T, typename S, int kTogether, int kAhead>
class Strip {
 public:
  __device__ Strip(const Arguments<T>& arguments, const Lane<S>& lane, const Filter<T, S>& filter)
      : a_(arguments), at_(lane) {
    first_row_ = at_.first_row * S::stride - a_.pad_height;
    end_row_ = static_cast<unsigned>(max(0, min(first_row_ + rows_seen(), a_.input_height)));
    const int source = static_cast<int>(a_.multiplier.quotient_of_any(at_.plane));
    const long long row = static_cast<long long>(source) * a_.input_height + first_row_;
    x_ = global_address(a_.x) + (row * a_.input_width + at_.piece_column) * int(sizeof(T));
#pragma unroll
    for (int i = 0; i < kAhead; ++i) ask(i, ahead_[i]);
    bias_ = a_.b == nullptr ? 0.0f : static_cast<float>(a_.b[filter.number]);
#pragma unroll
    for (int i = 0; i < S::taps * S::taps; ++i) {
      weights_[i / S::taps][i % S::taps] = static_cast<float>(filter.taps[i]);
    }
  }

  __device__ void run() {
    const int count = rows_seen();
#pragma unroll 1
    for (int first = 0; first < count; first += kSteps) steps<0>(first, count);
  }

 private:
  static constexpr int kSteps = kAhead > S::period ? kAhead : S::period;  // a multiple of both

  // Rows of x that the strip's outputs see.
  __device__ int rows_seen() const { return (at_.rows - 1) * S::stride + S::taps; }

  // Asks for a row, counted from the strip's first.
  __device__ void ask(int number, Piece<T, S::piece, kTogether>& piece) const {
    const int row = first_row_ + number;
    const bool is_inside = static_cast<unsigned>(row) < end_row_;
    const long long further = static_cast<long long>(number * a_.input_width) * int(sizeof(T));
    piece.load(x_ + further, is_inside ? a_.input_width - at_.piece_column : 0);
  }

  // The rows from number first + kStep on, of which first + kSteps is the next call's. A row is added to the
  // sums of all output rows that it is part of; the first row of one sets them.
  template <int kStep>
  __device__ void steps(int first, int count) {
    if constexpr (kStep < kSteps) {
      if (first + kStep >= count) return;
      Piece<T, S::piece, kTogether>& own = ahead_[kStep % kAhead];
      const Row<S> row(own, at_, static_cast<int>(a_.lanes.divisor));
      ask(first + kStep + kAhead, own);
#pragma unroll
      for (int r = kStep % S::stride; r < S::taps; r += S::stride) {
        float (&accumulators)[S::outputs] = accumulators_[place_of((kStep - r) / S::stride)];
#pragma unroll
        for (int i = 0; i < S::outputs; ++i) {
          if (r == 0) accumulators[i] = bias_;
#pragma unroll
          for (int s = 0; s < S::taps; ++s)
            accumulators[i] += row.columns[i * S::stride + s] * weights_[r][s];
        }
      }
      constexpr int kBegun = kStep - (S::taps - 1);  // when the output row began whose last row this is
      if constexpr ((kBegun + S::period) % S::stride == 0) {
        const int output = at_.first_row + (first + kBegun) / S::stride;
        const bool has_begun = kBegun >= 0 || first > 0;
        const long long line = static_cast<long long>(at_.plane) * a_.output_height + output;
        write_row(a_, line * a_.output_width + at_.column, a_.output_width - at_.column,
                  at_.writes && has_begun, accumulators_[place_of((kBegun + S::period) / S::stride)]);
      }
      steps<kStep + 1>(first, count);
    }
  }

  // Where the sums of an output row are, counted from one whose first row of x begins a period.
  static constexpr __device__ int place_of(int output) {
    return (output + S::accumulators) % S::accumulators;
  }

  const Arguments<T>& a_;
  const Lane<S>& at_;
  unsigned end_row_;      // behind the last row of x that the strip sees and the image has
  int first_row_;         // above the image where there is padding
  unsigned long long x_;  // where the lane's piece of that row begins
  float weights_[S::taps][S::taps];
  float bias_;
  float accumulators_[S::accumulators][S::outputs] = {};
  Piece<T, S::piece, kTogether> ahead_[kAhead];
};

// kTogether: columns of x that are one load.
template <typename T, int kTaps, int kStride, int kLeft, int kOutputs, int kTogether>
__global__ void __launch_bounds__(kBlockWarps* kWarp, blocks_at_once(kTaps))
    kernel(const __grid_constant__ Arguments<T> a) {
  using S = Slide<kTaps, kStride, kLeft, kOutputs>;
  const Lane<S> at(a);
  griddepcontrol_wait_unless(a.weights_are_constant);
  const Filter<T, S> filter(a, at);
  griddepcontrol_wait();
  if (kTogether == 1 || a.loads_together) {
    Strip<T, S, kTogether, rows_ahead(kTaps, S::period, sizeof(T))> strip(a, at, filter);
    griddepcontrol_launch_dependents();
    strip.run();
  } else {  // where a user's x begins between two columns that would be loaded together
    Strip<T, S, 1, 1> strip(a, at, filter);
    griddepcontrol_launch_dependents();
    strip.run();
  }
}

}  // namespace convswap::sliding_rows
