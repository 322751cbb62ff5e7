#pragma once

// Wgmma operands for each element type: windows of image rows, and a block's weights.

#include "conv/small_floats.h"
#include "cuda/primitives/global_memory.cuh"
#include "cuda/primitives/mma.cuh"
#include "cuda/primitives/small_float_pairs.cuh"
#include "cuda/primitives/wgmma.cuh"
#include "cuda/row_windows/arguments.h"

namespace convswap::row_windows {

// Rounding and packing are deferred until all loads are in flight.
template <typename Element>
struct WgmmaOperands;

template <>
struct WgmmaOperands<float> {
  using Product = Tf32;
  static constexpr int kOfWindow = kPlaceBytes / 4;
  static __device__ void load_one(bool condition, unsigned long long address, unsigned& to) {
    load_global_if(condition, address, to);
  }
  static __device__ unsigned word_of(unsigned bits) {
    return __float_as_uint(round_to_tf32(__uint_as_float(bits)));
  }
  static __device__ uint4 window_of(const unsigned (&numbers)[kOfWindow]) {
    return make_uint4(word_of(numbers[0]), word_of(numbers[1]), word_of(numbers[2]), word_of(numbers[3]));
  }
  // Window of weights.
  static __device__ uint4 window_of(const float (&numbers)[kOfWindow]) {
    return make_uint4(word_of(__float_as_uint(numbers[0])), word_of(__float_as_uint(numbers[1])),
                      word_of(__float_as_uint(numbers[2])), word_of(__float_as_uint(numbers[3])));
  }

  // `Pair`: two adjacent outputs. `beside`: the adjacent lane's pair. `Four`: four adjacent outputs.
  using Pair = uint2;
  static __device__ Pair pair_of(float first, float second) {
    return make_uint2(__float_as_uint(first), __float_as_uint(second));
  }
  static __device__ Pair beside(Pair pair) {
    return make_uint2(__shfl_xor_sync(0xffffffffu, pair.x, 1), __shfl_xor_sync(0xffffffffu, pair.y, 1));
  }
  using Four = uint4;
  static __device__ Four four_of(Pair first, Pair second) {
    return make_uint4(first.x, first.y, second.x, second.y);
  }
  static __device__ unsigned one_of(float result) { return __float_as_uint(result); }
};

template <typename Small>
struct WgmmaOperands {
  using Product = Small;
  static constexpr int kOfWindow = kPlaceBytes / 2;
  static __device__ void load_one(bool condition, unsigned long long address, unsigned& to) {
    load_global_16_if(condition, address, to);
  }
  static __device__ unsigned word_of(unsigned pair) { return pair; }
  static __device__ uint4 window_of(const unsigned (&numbers)[kOfWindow]) {
    return make_uint4(numbers[0] | numbers[1] << 16, numbers[2] | numbers[3] << 16,
                      numbers[4] | numbers[5] << 16, numbers[6] | numbers[7] << 16);
  }
  static __device__ uint4 window_of(const float (&numbers)[kOfWindow]) {
    return make_uint4(
        pack_rounded<Small>(numbers[0], numbers[1]), pack_rounded<Small>(numbers[2], numbers[3]),
        pack_rounded<Small>(numbers[4], numbers[5]), pack_rounded<Small>(numbers[6], numbers[7]));
  }

  using Pair = unsigned;
  static __device__ Pair pair_of(float first, float second) { return pack_rounded<Small>(first, second); }
  static __device__ Pair beside(Pair pair) { return __shfl_xor_sync(0xffffffffu, pair, 1); }
  using Four = uint2;
  static __device__ Four four_of(Pair first, Pair second) { return make_uint2(first, second); }
  static __device__ unsigned short one_of(float result) { return Small(result).bits; }
};

// A block's filters: those of a group, or a part of them if the group has more filters than a wgmma has rows.
struct BlockFilters {
  int first_channel, first_filter, filters;

  template <typename Element>
  __device__ explicit BlockFilters(const Arguments<Element>& problem) {
    const int group = problem.filter_blocks.quotient_of_any(blockIdx.y);
    const int of_group =
        static_cast<int>(blockIdx.y - group * problem.filter_blocks.divisor) * problem.block_filters;
    first_channel = group * problem.channels;
    first_filter = group * problem.filters + of_group;
    filters = min(problem.block_filters, problem.filters - of_group);
  }
};

// Band, from its index in all images.
struct Band {
  int image, first_row;  // of the output

  __device__ Band(int image, int first_row) : image(image), first_row(first_row) {}

  template <typename Element>
  __device__ Band(const Arguments<Element>& problem, int number)
      : image(problem.bands_divisor.quotient_of_any(number)),
        first_row((number - image * problem.bands) * problem.groups * problem.folds) {}
};

// Computes the segments, padding segments included; called by the producers.
template <typename Element>
__device__ inline void find_segments(const Arguments<Element>& problem, Segment* segments) {
  const int places = problem.segment_places, of_row = (problem.pitch + places - 1) / places;
  const int count = problem.channels * problem.band_rows * of_row;
  for (int i = static_cast<int>(threadIdx.x); i < problem.segments; i += kProducers) {
    const int row_of_all = i / of_row, first = (i - row_of_all * of_row) * places;
    const int channel = row_of_all / problem.band_rows, row = row_of_all - channel * problem.band_rows;
    const int in_phase = row / problem.row_phases;
    const int column = first * problem.stride_width - problem.pad_width - problem.lead;
    // Rows are ordered by phase, so a tap has the same distance from every output of a band.
    const int place = channel * problem.channel_places +
                      (row - in_phase * problem.row_phases) * problem.phase_places +
                      in_phase * problem.pitch + first;
    segments[i] =
        i < count ? Segment{channel * problem.input_plane + row * problem.input_width + column, row, column,
                            static_cast<short>(place), static_cast<short>(min(places, problem.pitch - first))}
                  : Segment{0, kNoRow, 0, 0, 0};
  }
}

// Global addresses and bounds of a lane's elements in a band's segments.
template <typename Element>
class SegmentReader {
 public:
  // `column`: counted from a segment's first.
  __device__ SegmentReader(const Arguments<Element>& problem, const BlockFilters& share, int column)
      : problem_(problem), first_channel_(share.first_channel), column_(column) {}

  // Selects the next band.
  __device__ void take(const Band& band) {
    first_row_ = band.first_row * problem_.stride_height - problem_.pad_height;
    address_ =
        global_address(problem_.x) +
        ((static_cast<long long>(band.image) * problem_.in_channels + first_channel_) * problem_.input_plane +
         static_cast<long long>(first_row_) * problem_.input_width + column_) *
            kBytes;
  }

  __device__ bool has_row(const Segment& segment) const {
    return static_cast<unsigned>(first_row_ + segment.row) < static_cast<unsigned>(problem_.input_height);
  }
  // True if the element `further` columns on is inside the image.
  __device__ bool has(const Segment& segment, int further) const {
    return static_cast<unsigned>(segment.column + column_ + further) <
           static_cast<unsigned>(problem_.input_width);
  }
  __device__ unsigned long long address(const Segment& segment) const {
    return address_ + static_cast<long long>(segment.at) * kBytes;
  }

 private:
  static constexpr int kBytes = static_cast<int>(sizeof(Element));

  const Arguments<Element>& problem_;
  int first_channel_, column_, first_row_ = 0;
  unsigned long long address_ = 0;
};

// Some segments of a warp, loaded element by element and then stored to shared memory.
template <typename Element>
class SegmentsOfNumbers {
  using Of = WgmmaOperands<Element>;

 public:
  static constexpr int kBatch = sizeof(Element) == 4 ? 4 : 2;

  // Column of a lane's first element in a segment.
  static __device__ int column_of(const Arguments<Element>& problem, int lane) {
    return lane * problem.stride_width;
  }

  // `segments`: the warp's first segment. The warp has every kProducerWarps-th segment from there.
  __device__ void load(const SegmentReader<Element>& own, const Segment* segments) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const Segment segment = segments[i * kProducerWarps];
      places_[i] = lane < segment.windows ? segment.place + lane : -1;
      const bool has_row = own.has_row(segment);
#pragma unroll
      for (int e = 0; e < Of::kOfWindow; ++e) {
        numbers_[i][e] = 0;
        Of::load_one(has_row && own.has(segment, e),
                     own.address(segment) + e * static_cast<int>(sizeof(Element)), numbers_[i][e]);
      }
    }
  }

  __device__ void put(uint4* slot) const {
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (places_[i] >= 0) slot[places_[i]] = Of::window_of(numbers_[i]);
    }
  }

 private:
  unsigned numbers_[kBatch][Of::kOfWindow];
  int places_[kBatch];
};

// The same in 32-bit words: a warp loads each word once, and lanes get their remaining words by shuffles.
template <typename Element, Loading kLoading>
class SegmentsOfWords {
  using Of = WgmmaOperands<Element>;
  static constexpr WordWindows kOwn = words_of(kLoading);
  static constexpr int kLoads = kOwn.loads, kStep = kOwn.step;
  static constexpr int kOfWord = 4 / static_cast<int>(sizeof(Element));

 public:
  static constexpr int kBatch = kLoads == 4 ? 2 : 4;

  static __device__ int column_of(const Arguments<Element>&, int lane) { return lane * kLoads * kOfWord; }

  __device__ void load(const SegmentReader<Element>& own, const Segment* segments) {
    const int first_window = static_cast<int>(threadIdx.x) % 32 * kOwn.windows();
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const Segment segment = segments[i * kProducerWarps];
      windows_[i] = segment.windows - first_window;
      places_[i] = segment.place + first_window;
      const bool has_row = own.has_row(segment);
#pragma unroll
      for (int k = 0; k < kLoads; ++k) words_[i][k] = 0;
      if constexpr (kOwn.by_pairs) {
        uint2 pair{};
        load_global_if(has_row && own.has(segment, 0), own.address(segment), pair);
        words_[i][0] = pair.x, words_[i][1] = pair.y;
      } else {
#pragma unroll
        for (int k = 0; k < kLoads; ++k) {
          load_global_if(has_row && own.has(segment, k * kOfWord), own.address(segment) + k * 4,
                         words_[i][k]);
        }
      }
    }
  }

  __device__ void put(uint4* slot) const {
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      unsigned words[kOwn.words()];
#pragma unroll
      for (int j = 0; j < kOwn.words(); ++j) {
        words[j] = j < kLoads ? Of::word_of(words_[i][j])
                              : __shfl_down_sync(0xffffffffu, words[j % kLoads], j / kLoads);
      }
      uint4 own[kOwn.windows()];
#pragma unroll
      for (int window = 0; window < kOwn.windows(); ++window) own[window] = window_of(words, window);
      if constexpr (kOwn.windows() == 2) {
        // Avoids bank conflicts: of eight lanes, four store their first windows and four their second.
        const int first = static_cast<int>(threadIdx.x) / 4 % 2;
        put_one(slot, i, first, first == 0 ? own[0] : own[1]);
        put_one(slot, i, 1 - first, first == 0 ? own[1] : own[0]);
      } else {
        put_one(slot, i, 0, own[0]);
      }
    }
  }

 private:
  static_assert(kOwn.windows() <= 2 && (!kOwn.by_pairs || kLoads == 2));

  // Window `window` of a lane, from its words.
  static __device__ uint4 window_of(const unsigned (&words)[kOwn.words()], int window) {
    const int first = kStep == 0 ? window / 2 : window * kStep;
    if (kStep == 0 && window % 2 == 1) {
      const auto half_further = [&](int j) { return words[first + j] >> 16 | words[first + j + 1] << 16; };
      return make_uint4(half_further(0), half_further(1), half_further(2), half_further(3));
    }
    return make_uint4(words[first], words[first + 1], words[first + 2], words[first + 3]);
  }
  __device__ void put_one(uint4* slot, int i, int window, uint4 numbers) const {
    if (window < windows_[i]) slot[places_[i] + window] = numbers;
  }

  unsigned words_[kBatch][kLoads];
  int places_[kBatch], windows_[kBatch];  // position of the lane's first window; windows from there on
};

// Stores a block's weights and bias to shared memory, once for all bands; called by the consumers. Weights
// are ordered [depth position][wgmma row]. Row m is filter m % block_filters of output row m / block_filters
// of a group. Window elements that a filter does not read get zero weights.
template <typename Element>
__device__ inline void put_weights(const Arguments<Element>& problem, const BlockFilters& share, int thread,
                                   uint4* weights, float* bias) {
  using Of = WgmmaOperands<Element>;
  const int places = problem.steps * kPlacesOfStep;
  for (int i = thread; i < places * kRows; i += kConsumers) {
    const DepthPlace place = problem.depth[i / kRows];
    const int row = i % kRows;
    const int fold = row / problem.block_filters, filter = row - fold * problem.block_filters;
    const int down = place.row - fold * problem.stride_height;
    const int r = down / problem.dilation_height;
    const bool in_bounds = place.channel >= 0 && fold < problem.folds && filter < share.filters &&
                           down >= 0 && r * problem.dilation_height == down && r < problem.filter_height;
    float numbers[Of::kOfWindow] = {};
    if (in_bounds) {
      const Element* const from =
          problem.w +
          ((static_cast<long long>(share.first_filter + filter) * problem.channels + place.channel) *
               problem.filter_height +
           r) *
              problem.filter_width;
#pragma unroll
      for (int e = 0; e < Of::kOfWindow; ++e) {
        const int tap = place.tap + e;
        if (static_cast<unsigned>(tap) < static_cast<unsigned>(problem.filter_width)) {
          numbers[e] = static_cast<float>(from[tap]);
        }
      }
    }
    weights[i] = Of::window_of(numbers);
  }
  for (int i = thread; i < problem.block_filters; i += kConsumers) {
    bias[i] = problem.b != nullptr && i < share.filters
                  ? static_cast<float>(problem.b[share.first_filter + i])
                  : 0.0f;
  }
}

}  // namespace convswap::row_windows
