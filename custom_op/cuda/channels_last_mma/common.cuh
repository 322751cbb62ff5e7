#pragma once

// What the kernels of the algorithm `channels_last_mma` share. channels_last_mma.cc explains the algorithm
// and fills the arguments.

#include "conv/small_floats.h"
#include "cuda/channels_last_mma/arguments.h"
#include "cuda/epilogue/activations.cuh"
#include "cuda/primitives/code_results.cuh"
#include "cuda/primitives/cp_async.cuh"
#include "cuda/primitives/dependent_launch.cuh"
#include "cuda/primitives/fast_divisor.cuh"
#include "cuda/primitives/ldmatrix.cuh"
#include "cuda/primitives/mma.cuh"
#include "cuda/primitives/requantise.cuh"
#include "cuda/primitives/shared_memory_at.cuh"
#include "cuda/primitives/small_float_pairs.cuh"

namespace convswap::channels_last_mma {

// The tensor-core operands of an element type, and its results in pairs, by the instructions of compute
// capability kCapability: 75 or 80. For every element type, an mma reads 32 bytes along K of 16 positions (a)
// and 8 filters (b), in words of 4 bytes that ldmatrix loads.
template <typename Element, int kCapability = 80>
struct Operand {
  using Accumulator = float;
  using ResultPair = unsigned;

  static __device__ void round(unsigned (&)[4]) {}
  static __device__ void multiply(float (&accumulators)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    mma_m16n8k16<Element>(accumulators, a[0], a[1], a[2], a[3], b[0], b[1]);
  }
  static __device__ void add(ResultPair pair, float& first, float& second) {
    first += unpack_low<Element>(pair), second += unpack_high<Element>(pair);
  }
  static __device__ ResultPair pack(float first, float second) {
    return pack_rounded<Element>(first, second);
  }
};
template <>
struct Operand<Float16, 75> : Operand<Float16> {
  static __device__ void multiply(float (&accumulators)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    mma_m16n8k8<Float16>(accumulators, a[0], a[1], b[0]);
    mma_m16n8k8<Float16>(accumulators, a[2], a[3], b[1]);
  }
  static __device__ ResultPair pack(float first, float second) {
    return Float16(first).bits | static_cast<unsigned>(Float16(second).bits) << 16;
  }
};
template <>
struct Operand<float> {
  using Accumulator = float;
  using ResultPair = uint2;

  static __device__ void round(unsigned (&a)[4]) {
#pragma unroll
    for (unsigned& word : a) word = __float_as_uint(round_to_tf32(__uint_as_float(word)));
  }
  static __device__ void multiply(float (&accumulators)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    const float pixels[] = {__uint_as_float(a[0]), __uint_as_float(a[1]), __uint_as_float(a[2]),
                            __uint_as_float(a[3])};
    const float weights[] = {__uint_as_float(b[0]), __uint_as_float(b[1])};
    mma_m16n8k8_tf32(accumulators, pixels, weights);
  }
  static __device__ void add(ResultPair pair, float& first, float& second) {
    first += __uint_as_float(pair.x), second += __uint_as_float(pair.y);
  }
  static __device__ ResultPair pack(float first, float second) {
    return make_uint2(__float_as_uint(first), __float_as_uint(second));
  }
};

// Weights are int8 whatever x has.
template <typename Code, int kCapability>
struct CodeOperand {
  using Accumulator = int;

  static __device__ void round(unsigned (&)[4]) {}
  static __device__ void multiply(int (&sums)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    if constexpr (kCapability >= 80) {
      mma_m16n8k32<Code>(sums, a, b);
    } else {
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        mma_m8n8k16<Code>(sums[0], sums[1], a[2 * k], b[k]);
        mma_m8n8k16<Code>(sums[2], sums[3], a[2 * k + 1], b[k]);
      }
    }
  }
};
template <int kCapability>
struct Operand<Int8, kCapability> : CodeOperand<Int8, kCapability> {};
template <int kCapability>
struct Operand<UInt8, kCapability> : CodeOperand<UInt8, kCapability> {};

// A piece of K: the tap, which may lie behind the last one, and the piece in the conv group's channels.
struct KPiece {
  int tap, piece;
};

// Piece `unit` of the first K chunk of the last span, which is no whole one.
template <typename Element>
__device__ inline KPiece first_of_tail(const Arguments<Element>& problem, int unit) {
  const int tap = unit / problem.tail_pieces;
  return {tap, problem.whole_spans * kRowPieces + unit - tap * problem.tail_pieces};
}

// Sizes of a tile of kPositions x kFilters that kPositionWarps x kFilterWarps warps share.
template <int kTilePositions, int kTileFilters, int kPositionWarps, int kFilterWarps, int kCardCapability>
struct TileSizes {
  static constexpr int kCapability = kCardCapability;
  static constexpr int kPositions = kTilePositions, kFilters = kTileFilters;
  static constexpr int kThreads = 32 * kPositionWarps * kFilterWarps;
  static constexpr int kWarpPositions = kPositions / kPositionWarps, kWarpFilters = kFilters / kFilterWarps;
  static constexpr int kPositionTiles = kWarpPositions / kMmaPositions;
  static constexpr int kFilterTiles = kWarpFilters / kMmaFilters;
  static constexpr int kStageBytes = (kPositions + kFilters) * kRowBytes;
  static constexpr int kSteps = kRowBytes / kMmaBytes;
  static constexpr int kParts = kSteps * kPositionTiles;  // of a K chunk's loads, between its mmas
  // Rows of a stage that a thread loads a piece of, and their distance.
  static constexpr int kRowDistance = kThreads / kRowPieces;
  static constexpr int kPixelRows = kPositions / kRowDistance, kWeightRows = kFilters / kRowDistance;
  static_assert(kPixelRows > 0 && kWeightRows > 0 && kRowDistance % 8 == 0 && kFilterTiles % 2 == 0);

  static __device__ int warp_position() {
    return static_cast<int>(threadIdx.x) / 32 / kFilterWarps * kWarpPositions;
  }
  static __device__ int warp_filter() {
    return static_cast<int>(threadIdx.x) / 32 % kFilterWarps * kWarpFilters;
  }

  // Of codes, whose sums a thread has in words of kWordFilters: the first filter of those in tiles `tile` and
  // tile + 1 of an mma's filters, and the first position of kWords.
  static constexpr int kWords = 2 * kPositionTiles;
  static __device__ int word_filter(int tile) {
    return warp_filter() + tile * kMmaFilters + static_cast<int>(threadIdx.x) % 4 * kWordFilters;
  }
  static __device__ int word_position() { return warp_position() + static_cast<int>(threadIdx.x) % 32 / 4; }
};

// The tile of the block: filters of a conv group, and positions of y.
struct BlockTile {
  int group, first_filter, filters_left;  // filters of the group
  int first_position;

  template <typename Element>
  __device__ BlockTile(const Arguments<Element>& problem, int positions, int filters) {
    int index = static_cast<int>(blockIdx.x);
    int filter_block = div_mod(index, problem.filter_blocks);
    first_filter = div_mod(filter_block, problem.filter_blocks_per_group) * filters;
    group = filter_block;
    filters_left = problem.filters_per_group - first_filter;
    first_position = index * positions;
  }
};

// Writes the first pixel of each position of the tile to shared memory. Positions beyond y get coordinates
// that are padding for every tap.
template <typename Sizes, typename Element>
__device__ inline void write_first_pixels(const Arguments<Element>& problem, const BlockTile& tile) {
  constexpr int kOutside = -(1 << 30) - (1 << 29);
  FirstPixel* const pixels = shared_memory_at(problem.shared.pixels);
  for (int i = static_cast<int>(threadIdx.x); i < Sizes::kPositions; i += Sizes::kThreads) {
    int image = tile.first_position + i;
    const bool is_position = image < problem.positions;
    FirstPixel pixel;
    pixel.column = div_mod(image, problem.output_width) * problem.stride_width - problem.pad_width;
    pixel.row = div_mod(image, problem.output_height) * problem.stride_height - problem.pad_height;
    pixel.depth = div_mod(image, problem.output_depth) * problem.stride_depth - problem.pad_depth;
    const auto in_row = [](unsigned rows, int extent, int index) {
      return rows * static_cast<unsigned>(extent) + static_cast<unsigned>(index);
    };
    pixel.offset =
        in_row(in_row(in_row(image, problem.input_depth, pixel.depth), problem.input_height, pixel.row),
               problem.input_width, pixel.column) *
            static_cast<unsigned>(problem.pixel_pieces) +
        static_cast<unsigned>(tile.group * problem.group_pieces);
    if (!is_position) pixel.depth = kOutside;
    pixels[i] = pixel;
  }
}

// Where a thread's loads come from: the same piece of some rows of each K chunk.
template <typename Sizes, typename Element>
class Sources {
 public:
  __device__ Sources(const Arguments<Element>& problem, const BlockTile& tile)
      : problem_(problem),
        unit_(static_cast<int>(threadIdx.x) % kRowPieces),
        row_(static_cast<int>(threadIdx.x) / kRowPieces),
        weights_((tile.group * problem.chunks * problem.filters_per_group + tile.first_filter + row_) *
                     kRowPieces +
                 unit_),
        // The thread's rows differ by multiples of eight, so that their swizzle is the same.
        target_(row_ * kRowBytes + (unit_ ^ (row_ % 8)) * kPieceBytes),
        spans_left_(problem.whole_spans),
        k_{0, unit_} {
    if (spans_left_ == 0) k_ = first_of_tail(problem, unit_);
  }

  // Finds the tap's pixels for the next K chunk.
  __device__ void locate() {
    int depth_tap = k_.tap;
    column_ = div_mod(depth_tap, problem_.filter_width) * problem_.dilation_width;
    height_ = div_mod(depth_tap, problem_.filter_height) * problem_.dilation_height;
    depth_ = depth_tap * problem_.dilation_depth;
    const auto unsigned_of = [](int number) { return static_cast<unsigned>(number); };
    offset_ = ((unsigned_of(depth_) * unsigned_of(problem_.input_height) + unsigned_of(height_)) *
                   unsigned_of(problem_.input_width) +
               unsigned_of(column_)) *
                  unsigned_of(problem_.pixel_pieces) +
              unsigned_of(k_.piece);
  }

  // Where row i, of the thread's kPixelRows, comes from, and whether it is read: it is 0 otherwise.
  struct Source {
    const unsigned char* from;
    bool is_read;
  };
  __device__ Source pixels(int i) const {
    const FirstPixel pixel = shared_memory_at(problem_.shared.pixels)[row_ + i * Sizes::kRowDistance];
    // && would branch, and so keep the loads apart from the mmas.
    const bool is_pixel = is_inside(pixel.depth + depth_, problem_.input_depth) &
                          is_inside(pixel.row + height_, problem_.input_height) &
                          is_inside(pixel.column + column_, problem_.input_width);
    const bool is_tap = k_.tap < problem_.taps;
    const unsigned char* const from = reinterpret_cast<const unsigned char*>(problem_.x) +
                                      static_cast<unsigned long long>(pixel.offset + offset_) * kPieceBytes;
    if constexpr (kIsCode<Element>) {
      const bool has_zero_point = problem_.conv.quantization.x_zero_point != 0;
      const bool is_read = is_tap & (is_pixel | has_zero_point);
      return {is_pixel ? from : problem_.zero_point_piece, is_read};
    }
    const bool is_read = is_tap & is_pixel;
    return {from, is_read};
  }
  // The same of kWeightRows. Rows behind the group's last filter give results that are not stored.
  __device__ const unsigned char* weights(int i) const {
    return problem_.prepared_weights + static_cast<unsigned long long>(weights_) * kPieceBytes +
           i * Sizes::kRowDistance * kRowBytes;
  }

  // Their offsets in a stage.
  __device__ int pixel_target(int i) const { return target_ + i * Sizes::kRowDistance * kRowBytes; }
  __device__ int weight_target(int i) const { return Sizes::kPositions * kRowBytes + pixel_target(i); }

  // Goes to the next K chunk.
  __device__ void advance() {
    if (spans_left_ == 0) {
      k_.tap += problem_.tail_taps, k_.piece += problem_.tail_rest;
      if (k_.piece >= problem_.group_pieces) k_.piece -= problem_.tail_pieces, ++k_.tap;
    } else if (++k_.tap == problem_.taps) {
      k_.tap = 0, k_.piece += kRowPieces;
      if (--spans_left_ == 0 && problem_.tail_pieces > 0) k_ = first_of_tail(problem_, unit_);
    }
    weights_ += problem_.filters_per_group * kRowPieces;
  }

 private:
  const Arguments<Element>& problem_;
  int unit_, row_;
  unsigned weights_;  // piece of the prepared weights
  int target_;        // offset in a stage
  int spans_left_;
  KPiece k_;
  int depth_, height_, column_;  // of the tap, from the first one
  unsigned offset_;
};

// The accumulators of a warp, and their mmas.
template <typename Sizes, typename Element>
class Multiplier {
 public:
  __device__ Multiplier() {
#pragma unroll
    for (int p = 0; p < Sizes::kPositionTiles; ++p) {
#pragma unroll
      for (int f = 0; f < Sizes::kFilterTiles; ++f) {
#pragma unroll
        for (int i = 0; i < 4; ++i) accumulators_[p][f][i] = 0;
      }
    }
    // Four matrices of pixels are 8 positions at the first 16 bytes of a step, the next 8, and both at the
    // second 16 bytes. Four matrices of weights are 8 filters at both 16 bytes, then the next 8.
    const int lane = static_cast<int>(threadIdx.x) % 32;
    lane_pixels_ =
        (Sizes::warp_position() + lane % 16) * kRowBytes + ((lane / 16) ^ (lane % 8)) * kPieceBytes;
    lane_weights_ = (Sizes::kPositions + Sizes::warp_filter() + lane / 16 * 8 + lane % 8) * kRowBytes +
                    ((lane / 8 % 2) ^ (lane % 8)) * kPieceBytes;
  }

  // Sets the sums of codes to those of the tile's filters.
  __device__ void set_sums(const int* initial_sums) {
#pragma unroll
    for (int f = 0; f < Sizes::kFilterTiles; f += 2) {
      const int4 initial = *reinterpret_cast<const int4*>(initial_sums + Sizes::word_filter(f));
#pragma unroll
      for (int p = 0; p < Sizes::kPositionTiles; ++p) {
#pragma unroll
        for (int row = 0; row < 2; ++row) {
          accumulators_[p][f][2 * row] = initial.x, accumulators_[p][f][2 * row + 1] = initial.y;
          accumulators_[p][f + 1][2 * row] = initial.z, accumulators_[p][f + 1][2 * row + 1] = initial.w;
        }
      }
    }
  }

  // Adds the products of a K chunk. Calls between(part) for each part of the loads, which overlap with mmas.
  template <typename Between>
  __device__ void multiply(const unsigned char* stage, Between between) {
    const SharedAddress address = shared_address(stage);
    load_pixels(0, address, 0, 0);
#pragma unroll
    for (int f = 0; f < Sizes::kFilterTiles; f += 2) load_weights(0, address, 0, f);
    multiply_steps<0>(address, between);
  }

  // Calls for_tile(position, filter, values) for each mma's accumulators: those of the position at a filter
  // and the next one, then those eight positions further on. Positions and filters are those of the tile.
  template <typename ForTile>
  __device__ void for_each_tile(ForTile for_tile) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int p = 0; p < Sizes::kPositionTiles; ++p) {
#pragma unroll
      for (int f = 0; f < Sizes::kFilterTiles; ++f) {
        for_tile(Sizes::warp_position() + p * kMmaPositions + lane / 4,
                 Sizes::warp_filter() + f * kMmaFilters + lane % 4 * 2, accumulators_[p][f]);
      }
    }
  }

  // Calls for_filters(filter, sums) for each kWordFilters neighbouring filters of the thread: their sums of
  // codes at its positions, which are word_position() and every eighth one.
  template <typename ForFilters>
  __device__ void for_each_word(ForFilters for_filters) const {
#pragma unroll
    for (int f = 0; f < Sizes::kFilterTiles; f += 2) {
      int sums[Sizes::kWords][kWordFilters];
#pragma unroll
      for (int i = 0; i < Sizes::kWords * kWordFilters; ++i) {
        sums[i / 4][i % 4] = accumulators_[i / 8][f + i % 4 / 2][i / 4 % 2 * 2 + i % 2];
      }
      for_filters(Sizes::word_filter(f), sums);
    }
  }

 private:
  // Addresses of a step differ in bits of the swizzled piece.
  static __device__ SharedAddress of_step(SharedAddress row, int step) { return row ^ step * kMmaBytes; }

  __device__ void load_pixels(int buffer, SharedAddress stage, int step, int tile) {
    ldmatrix(pixels_[buffer], of_step(stage + lane_pixels_, step) + tile * kMmaPositions * kRowBytes);
  }

  // Loads the weights of two tiles of filters.
  __device__ void load_weights(int buffer, SharedAddress stage, int step, int tile) {
    unsigned words[4];
    ldmatrix(words, of_step(stage + lane_weights_, step) + tile * kMmaFilters * kRowBytes);
#pragma unroll
    for (int i = 0; i < 4; ++i) weights_[buffer][tile + i / 2][i % 2] = words[i];
  }

  // Issues the mmas of step kStep and the steps after it. Loads are ahead of the mmas that need them: pixels
  // by a tile of positions, weights by a step. Pixels a step ahead would take more registers than a thread
  // has.
  template <int kStep, typename Between>
  __device__ void multiply_steps(SharedAddress stage, Between between) {
    constexpr int kTiles = Sizes::kPositionTiles;
    constexpr bool kHasNext = kStep + 1 < Sizes::kSteps;
#pragma unroll
    for (int p = 0; p < kTiles; ++p) {
      const int buffer = (kStep * kTiles + p) % 2;
      if (p + 1 < kTiles) {
        load_pixels(buffer ^ 1, stage, kStep, p + 1);
      } else if (kHasNext) {
        load_pixels(buffer ^ 1, stage, kStep + 1, 0);
      }
#pragma unroll
      for (int f = 0; f < Sizes::kFilterTiles; f += 2) {
        if (kHasNext && f / 2 % kTiles == p) load_weights((kStep + 1) % 2, stage, kStep + 1, f);
      }
      between(kStep * kTiles + p);
      Operand<Element, Sizes::kCapability>::round(pixels_[buffer]);
#pragma unroll
      for (int f = 0; f < Sizes::kFilterTiles; ++f) {
        Operand<Element, Sizes::kCapability>::multiply(accumulators_[p][f], pixels_[buffer],
                                                       weights_[kStep % 2][f]);
      }
    }
    if constexpr (kHasNext) multiply_steps<kStep + 1>(stage, between);
  }

  typename Operand<Element, Sizes::kCapability>::Accumulator accumulators_[Sizes::kPositionTiles]
                                                                          [Sizes::kFilterTiles][4];
  unsigned pixels_[2][4];
  unsigned weights_[2][Sizes::kFilterTiles][2];
  int lane_pixels_, lane_weights_;  // offsets of the lane's rows of the first matrices in a stage
};

// Writes the bias of the tile's filters to shared memory.
template <typename Sizes, typename Element>
__device__ inline void write_bias(const Arguments<Element>& problem, const BlockTile& tile) {
  static_assert(Sizes::kFilters <= Sizes::kThreads);
  const int filter = static_cast<int>(threadIdx.x);
  if (filter >= Sizes::kFilters) return;
  const bool has_bias = problem.b != nullptr && filter < tile.filters_left;
  const int first = tile.group * problem.filters_per_group + tile.first_filter;
  shared_memory_at(problem.shared.bias)[filter] =
      has_bias ? static_cast<float>(problem.b[first + filter]) : 0.0f;
}

// Results in shared memory: a row of the tile's filters for each position. Its pieces are swizzled, so that
// the accumulators of eight positions have no bank conflicts. Eight rows further on the swizzle is the same.
template <typename Sizes, typename Element>
struct ResultTile {
  static constexpr int kElements = kPieceBytes / static_cast<int>(sizeof(Element));
  static constexpr int kPieces = Sizes::kFilters / kElements;  // of a row
  // Of the filters of an mma, or of two mmas, that a thread has together: 1 or 2.
  static constexpr int kMmaPieces = kElements <= kMmaFilters ? kMmaFilters / kElements : 1;
  static constexpr int kSwizzle = (kPieces < 8 ? kPieces : 8) - 1;
  static constexpr int kLineRows = 8 / (kSwizzle + 1);  // in 128 bytes

  static __device__ int offset(int row, int filter) {
    const int piece = (filter / kElements) ^ (row / kLineRows * kMmaPieces & kSwizzle);
    return (row * kPieces + piece) * kPieceBytes + filter % kElements * static_cast<int>(sizeof(Element));
  }

  // Calls for_piece(offset, element) for the thread's pieces of y: their offset here and first element in y.
  template <typename ForPiece>
  static __device__ void for_each_piece(const Arguments<Element>& problem, const BlockTile& tile,
                                        ForPiece for_piece) {
    // A thread has the same filters in each of its rows.
    static_assert(Sizes::kThreads % kPieces == 0);
    constexpr int kRowDistance = Sizes::kThreads / kPieces;
    const int first_row = static_cast<int>(threadIdx.x) / kPieces;
    const int filter = static_cast<int>(threadIdx.x) % kPieces * kElements;
    if (filter >= tile.filters_left) return;
    const int rows = min(Sizes::kPositions, problem.positions - tile.first_position);
    long long element = static_cast<long long>(tile.first_position + first_row) * problem.out_channels +
                        tile.group * problem.filters_per_group + tile.first_filter + filter;
#pragma unroll 4
    for (int row = first_row; row < rows; row += kRowDistance) {
      for_piece(offset(row, filter), element);
      element += static_cast<long long>(kRowDistance) * problem.out_channels;
    }
  }

  static __device__ void load_residual(const Arguments<Element>& problem, const BlockTile& tile,
                                       unsigned char* staged) {
    for_each_piece(problem, tile, [&](int offset, long long element) {
      if constexpr (Sizes::kCapability >= 80) {
        cp_async_16(staged + offset, problem.z + element);
      } else {
        *reinterpret_cast<uint4*>(staged + offset) = *reinterpret_cast<const uint4*>(problem.z + element);
      }
    });
    if constexpr (Sizes::kCapability >= 80) {
      cp_async_commit_group();
      cp_async_wait_group<0>();
    }
    __syncthreads();
  }

  static __device__ void store(const Arguments<Element>& problem, const BlockTile& tile,
                               const unsigned char* staged) {
    for_each_piece(problem, tile, [&](int offset, long long element) {
      *reinterpret_cast<uint4*>(problem.y + element) = *reinterpret_cast<const uint4*>(staged + offset);
    });
  }
};

// Adds bias and residual, applies the activation and stores the results. The residual waits in shared memory
// where the results will be.
template <typename Sizes, typename Element>
__device__ inline void store_results(const Arguments<Element>& problem, const BlockTile& tile,
                                     Multiplier<Sizes, Element>& multiplier) {
  using Results = ResultTile<Sizes, Element>;
  using Pair = typename Operand<Element, Sizes::kCapability>::ResultPair;
  unsigned char* const staged = shared_memory_at(problem.shared.stages);
  if (problem.z != nullptr) Results::load_residual(problem, tile, staged);
  const auto pair_at = [&](int row, int filter) {
    return reinterpret_cast<Pair*>(staged + Results::offset(row, filter));
  };
  multiplier.for_each_tile([&](int row, int filter, float (&values)[4]) {
    const float2 bias = *reinterpret_cast<const float2*>(shared_memory_at(problem.shared.bias) + filter);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      values[2 * i] += bias.x, values[2 * i + 1] += bias.y;
      if (problem.z != nullptr) {
        Operand<Element, Sizes::kCapability>::add(*pair_at(row + 8 * i, filter), values[2 * i],
                                                  values[2 * i + 1]);
      }
    }
  });
  if (problem.has_activation) {
    dispatch_any_activation(problem.epilogue, [&](auto activate) {
      multiplier.for_each_tile([&](int, int, float (&values)[4]) { activate(values); });
    });
  }
  multiplier.for_each_tile([&](int row, int filter, const float (&values)[4]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      *pair_at(row + 8 * i, filter) =
          Operand<Element, Sizes::kCapability>::pack(values[2 * i], values[2 * i + 1]);
    }
  });
  __syncthreads();
  Results::store(problem, tile, staged);
}

// Writes the constants of the tile's filters to shared memory, see SharedOffsets. True if are_steps_bounded
// holds for the thread's filter.
template <typename Sizes, typename Element>
__device__ inline bool write_code_filters(const Arguments<Element>& problem, const BlockTile& tile) {
  static_assert(Sizes::kFilters <= Sizes::kThreads);
  const NaiveQuantisedConv& conv = problem.conv;
  const int in_tile = static_cast<int>(threadIdx.x);
  if (in_tile >= Sizes::kFilters) return true;
  // A filter behind the last one gives results that are not stored.
  const int filter = tile.group * problem.filters_per_group + tile.first_filter +
                     (in_tile < tile.filters_left ? in_tile : 0);
  const int bias = conv.b == nullptr ? 0 : conv.b[filter];
  const float scale = conv.scale[filter], offset = conv.offset == nullptr ? 0.0f : conv.offset[filter];
  shared_memory_at(problem.shared.initial_sums)[in_tile] = bias + problem.corrections[filter];
  shared_memory_at(problem.shared.scales)[in_tile] = scale;
  shared_memory_at(problem.shared.offsets)[in_tile] = offset;
  return are_steps_bounded(conv, problem.requantisation.limits, bias, scale, offset);
}

// The numbers of a thread's neighbouring filters.
__device__ inline void load_filters(const float* from, float (&to)[kWordFilters]) {
  const float4 four = *reinterpret_cast<const float4*>(from);
  to[0] = four.x, to[1] = four.y, to[2] = four.z, to[3] = four.w;
}

// Turns the sums into codes, and writes them to the staged tile, which has the codes of the residual.
template <CodeResults kResults, typename Sizes, typename Element>
__device__ inline void stage_codes(const Arguments<Element>& problem,
                                   const Multiplier<Sizes, Element>& multiplier, bool are_bounded) {
  unsigned char* const staged = shared_memory_at(problem.shared.stages);
  const ResultCodes<kResults, Element> codes(problem.conv, problem.requantisation.limits, are_bounded,
                                             shared_memory_at(problem.shared.code_table));
  multiplier.for_each_word([&](int filter, const int (&sums)[Sizes::kWords][kWordFilters]) {
    unsigned char* const first = staged + ResultTile<Sizes, Element>::offset(Sizes::word_position(), filter);
    const auto word_at = [&](int i) { return reinterpret_cast<unsigned*>(first + i * 8 * Sizes::kFilters); };
    float scale[kWordFilters], offset[kWordFilters] = {};
    load_filters(shared_memory_at(problem.shared.scales) + filter, scale);
    if (kResults != CodeResults::scaled) {
      load_filters(shared_memory_at(problem.shared.offsets) + filter, offset);
    }
    float values[Sizes::kWords][kWordFilters];
#pragma unroll
    for (int i = 0; i < Sizes::kWords; ++i) {
      const unsigned residual = kHasResidual<kResults> ? *word_at(i) : 0;
      steps_of_sums<kResults, Element>(problem.conv, problem.epilogue, scale, offset, sums[i], residual,
                                       values[i]);
    }
    codes.limit(values);
#pragma unroll
    for (int i = 0; i < Sizes::kWords; ++i) *word_at(i) = codes.word_of(values[i]);
  });
}

// The results of the general kind. The sums pass through shared memory, from which a thread reads those of
// some filters: a loop, since it has the code of every activation.
template <typename Sizes, typename Element>
__device__ inline void store_codes_of_sums(const Arguments<Element>& problem, const BlockTile& tile,
                                           const Multiplier<Sizes, Element>& multiplier) {
  using Sums = ResultTile<Sizes, float>;
  unsigned char* const staged = shared_memory_at(problem.shared.stages);
  multiplier.for_each_word([&](int filter, const int (&sums)[Sizes::kWords][kWordFilters]) {
#pragma unroll
    for (int i = 0; i < Sizes::kWords; ++i) {
      *reinterpret_cast<int4*>(staged + Sums::offset(Sizes::word_position() + 8 * i, filter)) =
          make_int4(sums[i][0], sums[i][1], sums[i][2], sums[i][3]);
    }
  });
  __syncthreads();
  // A thread has the same filters at each of its positions.
  constexpr int kLanes = Sizes::kFilters / kWordFilters, kStep = Sizes::kThreads / kLanes;
  const int in_tile = static_cast<int>(threadIdx.x) % kLanes * kWordFilters;
  const int filters_left = tile.filters_left - in_tile;
  if (filters_left <= 0) return;
  const int filter = tile.group * problem.filters_per_group + tile.first_filter + in_tile;
  const FilterScales<kWordFilters> scales(problem.conv, problem.requantisation, filter, kWordFilters);
#pragma unroll 1
  for (int row = static_cast<int>(threadIdx.x) / kLanes; row < Sizes::kPositions; row += kStep) {
    if (tile.first_position + row >= problem.positions) break;
    const int4 four = *reinterpret_cast<const int4*>(staged + Sums::offset(row, in_tile));
    const int sums[kWordFilters] = {four.x, four.y, four.z, four.w};
    // Positions are counted over all images.
    store_results<Results::any, Element>(
        problem.conv, problem.requantisation, scales,
        ResultPlace(problem.conv, 0, tile.first_position + row, filter, filters_left), sums);
  }
}

// The same as store_results for codes.
template <typename Sizes, typename Element>
__device__ inline void store_codes(const Arguments<Element>& problem, const BlockTile& tile,
                                   const Multiplier<Sizes, Element>& multiplier, bool are_bounded) {
  using Codes = ResultTile<Sizes, Element>;
  unsigned char* const staged = shared_memory_at(problem.shared.stages);
  if (problem.code_results == CodeResults::any) return store_codes_of_sums(problem, tile, multiplier);
  if (problem.z != nullptr) Codes::load_residual(problem, tile, staged);
  switch (problem.code_results) {
    case CodeResults::scaled:
      stage_codes<CodeResults::scaled>(problem, multiplier, are_bounded);
      break;
    case CodeResults::shifted:
      stage_codes<CodeResults::shifted>(problem, multiplier, are_bounded);
      break;
    case CodeResults::residual:
      stage_codes<CodeResults::residual>(problem, multiplier, are_bounded);
      break;
    case CodeResults::rounded:
      stage_codes<CodeResults::rounded>(problem, multiplier, are_bounded);
      break;
    case CodeResults::tabled:
      stage_codes<CodeResults::tabled>(problem, multiplier, are_bounded);
      break;
    case CodeResults::any:
      break;
  }
  __syncthreads();
  Codes::store(problem, tile, staged);
}

// Computes the tile: what its filters need, the sums by `multiply_chunks(multiplier)`, and the results.
template <typename Sizes, typename Element, typename MultiplyChunks>
__device__ inline void compute_tile(const Arguments<Element>& problem, const BlockTile& tile,
                                    MultiplyChunks multiply_chunks) {
  Multiplier<Sizes, Element> multiplier;
  if constexpr (kIsCode<Element>) {
    if (problem.code_results == CodeResults::tabled) {
      write_code_table(problem.conv, problem.epilogue, shared_memory_at(problem.shared.code_table),
                       static_cast<int>(threadIdx.x), Sizes::kThreads);
    }
    const bool are_bounded = __syncthreads_and(write_code_filters<Sizes>(problem, tile)) != 0;
    multiplier.set_sums(shared_memory_at(problem.shared.initial_sums));
    multiply_chunks(multiplier);
    store_codes(problem, tile, multiplier, are_bounded);
  } else {
    write_bias<Sizes>(problem, tile);
    multiply_chunks(multiplier);
    store_results(problem, tile, multiplier);
  }
}

}  // namespace convswap::channels_last_mma
