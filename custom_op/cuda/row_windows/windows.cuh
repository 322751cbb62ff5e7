#pragma once

#include "cuda/row_windows/numbers.cuh"
#include "cuda/row_windows/tile.cuh"

namespace convswap::row_windows {

// By the producers. Behind the last are some that are none.
template <typename Element>
__device__ inline void find_segments(const Arguments<Element>& problem, Segment* segments) {
  const int places = problem.segment_places, of_row = (problem.pitch + places - 1) / places;
  const int count = problem.channels * problem.band_rows * of_row;
  for (int i = static_cast<int>(threadIdx.x); i < problem.segments; i += kProducers) {
    const int row_of_all = i / of_row, first = (i - row_of_all * of_row) * places;
    const int channel = row_of_all / problem.band_rows, row = row_of_all - channel * problem.band_rows;
    const int in_phase = row / problem.row_phases;
    const int column = first * problem.stride_width - problem.pad_width - problem.lead;
    // Rows lie by their phase, and those of a phase one behind the other, so that the places of a tap are in
    // the same distance from all outputs of a band.
    const int place = channel * problem.channel_places +
                      (row - in_phase * problem.row_phases) * problem.phase_places +
                      in_phase * problem.pitch + first;
    segments[i] =
        i < count ? Segment{channel * problem.input_plane + row * problem.input_width + column, row, column,
                            static_cast<short>(place), static_cast<short>(min(places, problem.pitch - first))}
                  : Segment{0, kNoRow, 0, 0, 0};
  }
}

// What a lane has of a band's segments: the numbers from its own column of each on.
template <typename Element>
class OwnNumbers {
 public:
  // `column`: counted from a segment's first.
  __device__ OwnNumbers(const Arguments<Element>& problem, const Share& share, const Band& band, int column)
      : problem_(problem),
        column_(column),
        first_row_(band.first_row * problem.stride_height - problem.pad_height),
        address_(global_address(problem.x) +
                 ((static_cast<long long>(band.image) * problem.in_channels + share.first_channel) *
                      problem.input_plane +
                  static_cast<long long>(first_row_) * problem.input_width + column) *
                     kBytes) {}

  __device__ bool has_row(const Segment& segment) const {
    return static_cast<unsigned>(first_row_ + segment.row) < static_cast<unsigned>(problem_.input_height);
  }
  // Whether the image has the number that is so much further on in its row.
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
  int column_, first_row_;
  unsigned long long address_;
};

// Puts the windows of a band into their places, each number by a load of its own: by the producers.
template <typename Element>
__device__ inline void put_windows(const Arguments<Element>& problem, const Share& share, const Band& band,
                                   const Segment* segments, uint4* slot) {
  using Of = Numbers<Element>;
  // As many loads are under way as there are registers for.
  constexpr int kAtOnce = kLoadedWords / Of::kOfWindow;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const OwnNumbers<Element> own(problem, share, band, lane * problem.stride_width);
#pragma unroll 1
  for (int first = warp; first < problem.segments; first += kAtOnce * kProducerWarps) {
    unsigned numbers[kAtOnce][Of::kOfWindow] = {};
    int places[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const Segment segment = segments[first + i * kProducerWarps];
      places[i] = lane < segment.windows ? segment.place + lane : -1;
      const bool has_row = own.has_row(segment);
#pragma unroll
      for (int e = 0; e < Of::kOfWindow; ++e) {
        Of::load_one(has_row && own.has(segment, e),
                     own.address(segment) + e * static_cast<int>(sizeof(Element)), numbers[i][e]);
      }
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (places[i] >= 0) slot[places[i]] = Of::window_of(numbers[i]);
    }
  }
}

// The same where rows are whole words and windows begin at one, some words further on from place to place:
// kWords, or half of one where that is 0. A warp loads each word once, a lane those of its own step, and has
// the others from the lanes behind it.
template <int kWords, typename Element>
__device__ inline void put_windows_of_words(const Arguments<Element>& problem, const Share& share,
                                            const Band& band, const Segment* segments, uint4* slot) {
  using Of = Numbers<Element>;
  constexpr int kLoads = kWords == 0 ? 1 : kWords, kOfWord = 4 / static_cast<int>(sizeof(Element));
  constexpr int kAtOnce = kLoadedWords / 4 / (kLoads == 4 ? 2 : 1);
  constexpr int kWindows = kWords == 0 ? 2 : 1;  // of a lane
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int first_window = lane * kWindows;
  const OwnNumbers<Element> own(problem, share, band, lane * kLoads * kOfWord);
#pragma unroll 1
  for (int first = warp; first < problem.segments; first += kAtOnce * kProducerWarps) {
    unsigned words[kAtOnce][kLoads] = {};
    int places[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const Segment segment = segments[first + i * kProducerWarps];
      places[i] = first_window < segment.windows ? segment.place + first_window : -1;
      const bool has_row = own.has_row(segment);
#pragma unroll
      for (int k = 0; k < kLoads; ++k) {
        load_global_if(has_row && own.has(segment, k * kOfWord), own.address(segment) + k * 4, words[i][k]);
      }
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
#pragma unroll
      for (int k = 0; k < kLoads; ++k) words[i][k] = Of::word_of(words[i][k]);
      unsigned window[5];
#pragma unroll
      for (int j = 0; j < (kWords == 0 ? 5 : 4); ++j) {
        window[j] =
            j < kLoads ? words[i][j] : __shfl_down_sync(0xffffffffu, words[i][j % kLoads], j / kLoads);
      }
      if (places[i] >= 0) slot[places[i]] = make_uint4(window[0], window[1], window[2], window[3]);
      if constexpr (kWords == 0) {
        const auto half_further = [&](int j) { return window[j] >> 16 | window[j + 1] << 16; };
        // A row has an even number of places.
        if (places[i] >= 0) {
          slot[places[i] + 1] =
              make_uint4(half_further(0), half_further(1), half_further(2), half_further(3));
        }
      }
    }
  }
}

}  // namespace convswap::row_windows
