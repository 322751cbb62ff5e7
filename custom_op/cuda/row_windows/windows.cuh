#pragma once

#include "cuda/row_windows/numbers.cuh"
#include "cuda/row_windows/tile.cuh"

namespace convswap::row_windows {

// Puts the windows of a band into their places: by the producers, each some at a time. A place has
// the window of an output's column: rows of the image lie by their phase, and those of a phase one behind the
// other, so that the places of a tap are in the same distance from all outputs of a band.
template <bool kPairs, typename Element>
__device__ inline void put_windows(const Arguments<Element>& problem, const Share& share, const Band& band,
                                   uint4* slot) {
  using Of = Numbers<Element>;
  using Window = typename Of::template Window<kPairs>;
  // As many loads are under way as there are registers for.
  constexpr int kAtOnce = kLoadedWords * 4 / sizeof(Window);
  const int count = problem.channels * problem.band_rows * problem.pitch;
  const int first_row = band.first_row * problem.stride_height - problem.pad_height;
  const int first_column = -problem.pad_width - problem.lead;
  const unsigned long long x = global_address(
      problem.x +
      (static_cast<long long>(band.image) * problem.in_channels + share.first_channel) * problem.input_plane);
#pragma unroll 1
  for (int first = static_cast<int>(threadIdx.x); first < count; first += kAtOnce * kProducers) {
    Window windows[kAtOnce] = {};
    int places[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int number = first + i * kProducers;
      const int row_of_all = problem.pitch_divisor.quotient_of_any(number);
      const int place = number - row_of_all * problem.pitch;
      const int channel = problem.rows_divisor.quotient_of_any(row_of_all);
      const int row = row_of_all - channel * problem.band_rows;
      const int in_phase = problem.phases_divisor.quotient_of_any(row);
      places[i] = number < count ? channel * problem.channel_places +
                                       (row - in_phase * problem.row_phases) * problem.phase_places +
                                       in_phase * problem.pitch + place
                                 : -1;
      const int h = first_row + row, column = first_column + place * problem.stride_width;
      const bool exists =
          number < count && static_cast<unsigned>(h) < static_cast<unsigned>(problem.input_height);
      const long long at =
          static_cast<long long>(channel) * problem.input_plane + h * problem.input_width + column;
      Of::template load<kPairs>(exists, x + at * static_cast<int>(sizeof(Element)), column,
                                problem.input_width, windows[i]);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (places[i] >= 0) slot[places[i]] = Of::template place_of<kPairs>(windows[i]);
    }
  }
}

}  // namespace convswap::row_windows
