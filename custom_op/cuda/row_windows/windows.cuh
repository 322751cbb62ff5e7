#pragma once

#include "cuda/row_windows/numbers.cuh"
#include "cuda/row_windows/tile.cuh"

namespace convswap::row_windows {

// The row of an image that a number stands for, of all rows and channels of a band: not more than there are
// places in shared memory, nor is what it is divided by.
struct BandRow {
  bool exists;
  int channel, h;  // of the image
  int first_place;

  template <typename Element>
  __device__ BandRow(const Arguments<Element>& problem, const Band& band, int number)
      : channel(problem.rows_divisor.quotient(number)) {
    const int row = number - channel * problem.band_rows;
    const int in_phase = problem.phases_divisor.quotient(row);
    h = band.first_row * problem.stride_height - problem.pad_height + row;
    exists =
        channel < problem.channels && static_cast<unsigned>(h) < static_cast<unsigned>(problem.input_height);
    // Rows lie by their phase, and those of a phase one behind the other, so that the places of a tap are in
    // the same distance from all outputs of a band.
    first_place = channel * problem.channel_places +
                  (row - in_phase * problem.row_phases) * problem.phase_places + in_phase * problem.pitch;
  }
};

// Of the first channel that a block reads of a band's image.
template <typename Element>
__device__ inline unsigned long long image_of(const Arguments<Element>& problem, const Share& share,
                                              const Band& band) {
  return global_address(problem.x +
                        (static_cast<long long>(band.image) * problem.in_channels + share.first_channel) *
                            problem.input_plane);
}

// Puts the windows of a band into their places, each number by a load of its own: by the producers.
template <typename Element>
__device__ inline void put_windows(const Arguments<Element>& problem, const Share& share, const Band& band,
                                   uint4* slot) {
  using Of = Numbers<Element>;
  // As many loads are under way as there are registers for.
  constexpr int kAtOnce = kLoadedWords / Of::kOfWindow;
  const int count = problem.channels * problem.band_rows * problem.pitch;
  const unsigned long long image = image_of(problem, share, band);
#pragma unroll 1
  for (int first = static_cast<int>(threadIdx.x); first < count; first += kAtOnce * kProducers) {
    unsigned numbers[kAtOnce][Of::kOfWindow] = {};
    int places[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int number = first + i * kProducers;
      const int row_of_all = problem.pitch_divisor.quotient(number);
      const int place = number - row_of_all * problem.pitch;
      const BandRow row(problem, band, row_of_all);
      const int column = place * problem.stride_width - problem.pad_width - problem.lead;
      const long long at =
          static_cast<long long>(row.channel) * problem.input_plane + row.h * problem.input_width + column;
      places[i] = number < count ? row.first_place + place : -1;
#pragma unroll
      for (int e = 0; e < Of::kOfWindow; ++e) {
        const bool is_inside =
            row.exists && static_cast<unsigned>(column + e) < static_cast<unsigned>(problem.input_width);
        Of::load_one(is_inside, image + (at + e) * static_cast<int>(sizeof(Element)), numbers[i][e]);
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
                                            const Band& band, uint4* slot) {
  using Of = Numbers<Element>;
  constexpr int kLoads = kWords == 0 ? 1 : kWords, kOfWord = 4 / static_cast<int>(sizeof(Element));
  constexpr int kAtOnce = kLoadedWords / 2 / kLoads;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int units = problem.channels * problem.band_rows * static_cast<int>(problem.segments_divisor.divisor);
  const unsigned long long image = image_of(problem, share, band);
#pragma unroll 1
  for (int first = warp; first < units; first += kAtOnce * (kProducers / 32)) {
    unsigned own[kAtOnce][kLoads] = {};
    int places[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int unit = first + i * (kProducers / 32);
      const int row_of_all = problem.segments_divisor.quotient(unit);
      const int segment = unit - row_of_all * static_cast<int>(problem.segments_divisor.divisor);
      const int place = segment * places_of_segment(kWords) + lane * (kWords == 0 ? 2 : 1);
      const BandRow row(problem, band, row_of_all);
      const int column = place * problem.stride_width - problem.pad_width - problem.lead;
      const long long at =
          static_cast<long long>(row.channel) * problem.input_plane + row.h * problem.input_width + column;
      const bool is_own = unit < units && place < problem.pitch && lane < 32 - lanes_behind(kWords);
      places[i] = is_own ? row.first_place + place : -1;
#pragma unroll
      for (int k = 0; k < kLoads; ++k) {
        const bool is_inside = row.exists && static_cast<unsigned>(column + k * kOfWord) <
                                                 static_cast<unsigned>(problem.input_width);
        load_global_if(is_inside, image + at * static_cast<int>(sizeof(Element)) + k * 4, own[i][k]);
      }
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
#pragma unroll
      for (int k = 0; k < kLoads; ++k) own[i][k] = Of::word_of(own[i][k]);
      unsigned words[5];
#pragma unroll
      for (int j = 0; j < (kWords == 0 ? 5 : 4); ++j) {
        words[j] = j < kLoads ? own[i][j] : __shfl_down_sync(0xffffffffu, own[i][j % kLoads], j / kLoads);
      }
      if (places[i] >= 0) slot[places[i]] = make_uint4(words[0], words[1], words[2], words[3]);
      if constexpr (kWords == 0) {
        const auto half_further = [&](int j) { return words[j] >> 16 | words[j + 1] << 16; };
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
