#pragma once

#include "cuda/primitives/global_memory.cuh"
#include "cuda/sliced_k/arguments.h"
#include "cuda/sliced_k/layout.h"
#include "cuda/sliced_k/numbers.cuh"

namespace convswap::sliced_k {

// A pixel of the output by its number through all images.
struct Pixel {
  int image, place, row, column;

  template <typename Element>
  __device__ Pixel(const Arguments<Element>& a, unsigned number)
      : image(a.plane.quotient_of_any(number)),
        place(static_cast<int>(number - image * a.plane.divisor)),
        row(a.width.quotient_of_any(place)),
        column(place - row * static_cast<int>(a.width.divisor)) {}
};

// The number, in its block, of column `column` of a tile: where a thread loads its pixels of a channel
// together they are neighbours.
template <int kPixelTiles>
__device__ inline int pixel_of(bool together, int tile, int column) {
  return together ? kPixelTiles * column + tile : kTilePixels * tile + column;
}

// A lane's pixels of a block, one of each tile, of which it loads what they are multiplied with, step by
// step.
template <typename Format, bool kOneTap, int kPixelTiles>
class Pixels {
 public:
  using Of = Numbers<Format>;
  using Element = typename Of::Element;
  using Step = unsigned[kPixelTiles][4];

  __device__ Pixels(const Arguments<Element>& a, int group, unsigned first, int lane)
      : a_(a), quarter_(lane % 4 * 4) {
    const unsigned long long x = global_address(a.x) + static_cast<long long>(group) * a.channels *
                                                           a.input_plane * static_cast<int>(sizeof(Element));
#pragma unroll
    for (int t = 0; t < kPixelTiles; ++t) {
      const unsigned number = first + pixel_of<kPixelTiles>(a.loads_pixels_together, t, lane / 4);
      const bool exists = number < a.pixels;
      const Pixel pixel(a, exists ? number : 0u);
      const int row = pixel.row * a.stride_height - a.pad_height;
      const int column = pixel.column * a.stride_width - a.pad_width;
      own_[t] = x + (static_cast<long long>(pixel.image) * a.in_channels * a.input_plane +
                     row * a.input_width + column) *
                        static_cast<int>(sizeof(Element));
      // No tap of a pixel that is none lies in an image.
      row_[t] = exists ? row : kNowhere;
      column_[t] = column;
    }
  }

  __device__ void load(int step, Step& to) const {
    const int first = step * kStepDepth + quarter_;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (kOneTap) {
        load_channel(first + i, i, to);
      } else {
        load_tap(first + i, i, to);
      }
    }
  }

 private:
  // Plus a row or a tap's row, which are below 2^28, or once more itself, it is less than none.
  static constexpr int kNowhere = -(1 << 30);

  __device__ void load_channel(int channel, int i, Step& to) const {
    const bool is_there = channel < a_.depth;
    const unsigned plane = a_.input_plane * static_cast<unsigned>(sizeof(Element));
    if (a_.loads_pixels_together) {
      const unsigned long long from = address_beyond(own_[0], channel, plane);
      const bool exists = is_there && row_[0] >= 0;
      constexpr int kBytes = kPixelTiles * static_cast<int>(sizeof(Element));
      if constexpr (kBytes == 2) {
        to[0][i] = 0;
        Of::load_one(exists, from, to[0][i]);
      } else if constexpr (kBytes == 4) {
        to[0][i] = 0;
        load_global_if(exists, from, to[0][i]);
      } else if constexpr (kBytes == 8) {
        uint2 both{};
        load_global_if(exists, from, both);
        to[0][i] = both.x, to[1][i] = both.y;
      } else {
        uint4 all{};
        load_global_if(exists, from, all);
        to[0][i] = all.x, to[1][i] = all.y, to[2][i] = all.z, to[3][i] = all.w;
      }
      return;
    }
#pragma unroll
    for (int t = 0; t < kPixelTiles; ++t) {
      to[t][i] = 0;
      Of::load_one(is_there && row_[t] >= 0, address_beyond(own_[t], channel, plane), to[t][i]);
    }
  }

  __device__ void load_tap(int number, int i, Step& to) const {
    const int channel = a_.taps.quotient(number);
    const int tap = number - channel * static_cast<int>(a_.taps.divisor);
    const int tap_row = a_.columns.quotient(tap);
    const int tap_column = tap - tap_row * static_cast<int>(a_.columns.divisor);
    const int down = tap_row * a_.dilation_height, across = tap_column * a_.dilation_width;
    const int down_or_nowhere = number < a_.depth ? down : kNowhere;
    const long long further =
        (static_cast<long long>(channel) * a_.input_plane + down * a_.input_width + across) *
        static_cast<int>(sizeof(Element));
#pragma unroll
    for (int t = 0; t < kPixelTiles; ++t) {
      const bool is_inside =
          static_cast<unsigned>(row_[t] + down_or_nowhere) < static_cast<unsigned>(a_.input_height) &&
          static_cast<unsigned>(column_[t] + across) < static_cast<unsigned>(a_.input_width);
      to[t][i] = 0;
      Of::load_one(is_inside, own_[t] + further, to[t][i]);
    }
  }

  const Arguments<Element>& a_;
  int quarter_;
  unsigned long long own_[kPixelTiles];
  int row_[kPixelTiles], column_[kPixelTiles];
};

}  // namespace convswap::sliced_k
