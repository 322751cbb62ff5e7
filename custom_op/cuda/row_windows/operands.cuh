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
  static constexpr int kWindowElements = kWindowBytes / 4;
  static __device__ void load_one(bool condition, unsigned long long address, unsigned& to) {
    load_global_if(condition, address, to);
  }
  static __device__ unsigned word_of(unsigned bits) {
    return __float_as_uint(round_to_tf32(__uint_as_float(bits)));
  }
  static __device__ uint4 window_of(const unsigned (&elements)[kWindowElements]) {
    return make_uint4(word_of(elements[0]), word_of(elements[1]), word_of(elements[2]), word_of(elements[3]));
  }
  // Window of weights.
  static __device__ uint4 window_of(const float (&elements)[kWindowElements]) {
    return make_uint4(word_of(__float_as_uint(elements[0])), word_of(__float_as_uint(elements[1])),
                      word_of(__float_as_uint(elements[2])), word_of(__float_as_uint(elements[3])));
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
  static constexpr int kWindowElements = kWindowBytes / 2;
  static __device__ void load_one(bool condition, unsigned long long address, unsigned& to) {
    load_global_16_if(condition, address, to);
  }
  static __device__ unsigned word_of(unsigned pair) { return pair; }
  static __device__ uint4 window_of(const unsigned (&elements)[kWindowElements]) {
    return make_uint4(elements[0] | elements[1] << 16, elements[2] | elements[3] << 16,
                      elements[4] | elements[5] << 16, elements[6] | elements[7] << 16);
  }
  static __device__ uint4 window_of(const float (&elements)[kWindowElements]) {
    return make_uint4(
        pack_rounded<Small>(elements[0], elements[1]), pack_rounded<Small>(elements[2], elements[3]),
        pack_rounded<Small>(elements[4], elements[5]), pack_rounded<Small>(elements[6], elements[7]));
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
  const int windows = problem.windows_per_segment, row_segments = (problem.pitch + windows - 1) / windows;
  const int count = problem.channels * problem.band_rows * row_segments;
  for (int i = static_cast<int>(threadIdx.x); i < problem.segments; i += kProducerThreads) {
    const int input_row = i / row_segments, first = (i - input_row * row_segments) * windows;
    const int channel = input_row / problem.band_rows, row = input_row - channel * problem.band_rows;
    const int in_phase = row / problem.row_phases;
    const int column = first * problem.stride_width - problem.pad_width - problem.lead;
    // Rows are ordered by phase, so a tap has the same distance from every output of a band.
    const int offset = channel * problem.channel_windows +
                       (row - in_phase * problem.row_phases) * problem.phase_windows +
                       in_phase * problem.pitch + first;
    segments[i] = i < count ? Segment{channel * problem.input_plane + row * problem.input_width + column, row,
                                      column, static_cast<short>(offset),
                                      static_cast<short>(min(windows, problem.pitch - first))}
                            : Segment{0, kNoRow, 0, 0, 0};
  }
}

// Global addresses and bounds of a lane's elements in a band's segments.
template <typename Element>
class SegmentReader {
 public:
  // `column` is relative to the segment's first column.
  __device__ SegmentReader(const Arguments<Element>& problem, const BlockFilters& block, int column)
      : problem_(problem), first_channel_(block.first_channel), column_(column) {}

  // Selects the next band.
  __device__ void select(const Band& band) {
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
    return address_ + static_cast<long long>(segment.input_offset) * kBytes;
  }

 private:
  static constexpr int kBytes = static_cast<int>(sizeof(Element));

  const Arguments<Element>& problem_;
  int first_channel_, column_, first_row_ = 0;
  unsigned long long address_ = 0;
};

// kBatch segments of a warp, loaded element by element and then stored to shared memory.
template <typename Element>
class SegmentsOfElements {
  using Of = WgmmaOperands<Element>;

 public:
  static constexpr int kBatch = sizeof(Element) == 4 ? 4 : 2;

  // Column of a lane's first element in a segment.
  static __device__ int column_of(const Arguments<Element>& problem, int lane) {
    return lane * problem.stride_width;
  }

  // `segments`: the warp's first segment. The warp has every kProducerWarps-th segment from there.
  __device__ void load(const SegmentReader<Element>& reader, const Segment* segments) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const Segment segment = segments[i * kProducerWarps];
      offsets_[i] = lane < segment.windows ? segment.window_offset + lane : -1;
      const bool has_row = reader.has_row(segment);
#pragma unroll
      for (int e = 0; e < Of::kWindowElements; ++e) {
        elements_[i][e] = 0;
        Of::load_one(has_row && reader.has(segment, e),
                     reader.address(segment) + e * static_cast<int>(sizeof(Element)), elements_[i][e]);
      }
    }
  }

  __device__ void store(uint4* stage) const {
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (offsets_[i] >= 0) stage[offsets_[i]] = Of::window_of(elements_[i]);
    }
  }

 private:
  unsigned elements_[kBatch][Of::kWindowElements];
  int offsets_[kBatch];
};

// The same in 32-bit words: a warp loads each word once, and lanes get their remaining words by shuffles.
template <typename Element, Loading kLoading>
class SegmentsOfWords {
  using Of = WgmmaOperands<Element>;
  static constexpr WordWindows kWindows = words_of(kLoading);
  static constexpr int kLoads = kWindows.loads, kStep = kWindows.step;
  static constexpr int kWordElements = 4 / static_cast<int>(sizeof(Element));

 public:
  static constexpr int kBatch = kLoads == 4 ? 2 : 4;

  static __device__ int column_of(const Arguments<Element>&, int lane) {
    return lane * kLoads * kWordElements;
  }

  __device__ void load(const SegmentReader<Element>& reader, const Segment* segments) {
    const int first_window = static_cast<int>(threadIdx.x) % 32 * kWindows.windows();
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const Segment segment = segments[i * kProducerWarps];
      windows_[i] = segment.windows - first_window;
      offsets_[i] = segment.window_offset + first_window;
      const bool has_row = reader.has_row(segment);
#pragma unroll
      for (int k = 0; k < kLoads; ++k) words_[i][k] = 0;
      if constexpr (kWindows.by_pairs) {
        uint2 pair{};
        load_global_if(has_row && reader.has(segment, 0), reader.address(segment), pair);
        words_[i][0] = pair.x, words_[i][1] = pair.y;
      } else {
#pragma unroll
        for (int k = 0; k < kLoads; ++k) {
          load_global_if(has_row && reader.has(segment, k * kWordElements), reader.address(segment) + k * 4,
                         words_[i][k]);
        }
      }
    }
  }

  __device__ void store(uint4* stage) const {
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      unsigned words[kWindows.words()];
#pragma unroll
      for (int j = 0; j < kWindows.words(); ++j) {
        words[j] = j < kLoads ? Of::word_of(words_[i][j])
                              : __shfl_down_sync(0xffffffffu, words[j % kLoads], j / kLoads);
      }
      uint4 windows[kWindows.windows()];
#pragma unroll
      for (int window = 0; window < kWindows.windows(); ++window) windows[window] = window_of(words, window);
      if constexpr (kWindows.windows() == 2) {
        // Avoids bank conflicts: of eight lanes, four store their first windows and four their second.
        const int first = static_cast<int>(threadIdx.x) / 4 % 2;
        store_one(stage, i, first, first == 0 ? windows[0] : windows[1]);
        store_one(stage, i, 1 - first, first == 0 ? windows[1] : windows[0]);
      } else {
        store_one(stage, i, 0, windows[0]);
      }
    }
  }

 private:
  static_assert(kWindows.windows() <= 2 && (!kWindows.by_pairs || kLoads == 2));

  // Window `window` of a lane, from its words.
  static __device__ uint4 window_of(const unsigned (&words)[kWindows.words()], int window) {
    const int first = kStep == 0 ? window / 2 : window * kStep;
    if (kStep == 0 && window % 2 == 1) {
      const auto half_further = [&](int j) { return words[first + j] >> 16 | words[first + j + 1] << 16; };
      return make_uint4(half_further(0), half_further(1), half_further(2), half_further(3));
    }
    return make_uint4(words[first], words[first + 1], words[first + 2], words[first + 3]);
  }
  __device__ void store_one(uint4* stage, int i, int window, uint4 elements) const {
    if (window < windows_[i]) stage[offsets_[i] + window] = elements;
  }

  unsigned words_[kBatch][kLoads];
  int offsets_[kBatch], windows_[kBatch];  // position of the lane's first window; windows from there on
};

// Stores a block's weights and bias to shared memory, once for all bands; called by the consumers. Weights
// are ordered [depth position][wgmma row]. Row m is filter m % block_filters of output row m / block_filters
// of a group. Window elements that a filter does not read get zero weights.
template <typename Element>
__device__ inline void store_weights(const Arguments<Element>& problem, const BlockFilters& block, int thread,
                                     uint4* weights, float* bias) {
  using Of = WgmmaOperands<Element>;
  const int windows = problem.steps * kWindowsPerStep;
  for (int i = thread; i < windows * kRows; i += kConsumerThreads) {
    const DepthWindow window = problem.depth[i / kRows];
    const int row = i % kRows;
    const int fold = row / problem.block_filters, filter = row - fold * problem.block_filters;
    const int row_offset = window.row - fold * problem.stride_height;
    const int r = row_offset / problem.dilation_height;
    const bool in_bounds = window.channel >= 0 && fold < problem.folds && filter < block.filters &&
                           row_offset >= 0 && r * problem.dilation_height == row_offset &&
                           r < problem.filter_height;
    float elements[Of::kWindowElements] = {};
    if (in_bounds) {
      const Element* const from =
          problem.w +
          ((static_cast<long long>(block.first_filter + filter) * problem.channels + window.channel) *
               problem.filter_height +
           r) *
              problem.filter_width;
#pragma unroll
      for (int e = 0; e < Of::kWindowElements; ++e) {
        const int tap = window.tap + e;
        if (static_cast<unsigned>(tap) < static_cast<unsigned>(problem.filter_width)) {
          elements[e] = static_cast<float>(from[tap]);
        }
      }
    }
    weights[i] = Of::window_of(elements);
  }
  for (int i = thread; i < problem.block_filters; i += kConsumerThreads) {
    bias[i] = problem.b != nullptr && i < block.filters
                  ? static_cast<float>(problem.b[block.first_filter + i])
                  : 0.0f;
  }
}

}  // namespace convswap::row_windows
