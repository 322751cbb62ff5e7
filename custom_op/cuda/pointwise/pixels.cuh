#pragma once

#include "cuda/pointwise/arguments.h"
#include "cuda/pointwise/numbers.cuh"
#include "cuda/primitives/warpgroup.cuh"

namespace convswap::pointwise {

// Where the pixel of a number lies in the first channel of its image, and its output in the first plane.
struct Pixel {
  unsigned image;
  int input, output;

  template <typename Element>
  __device__ Pixel(const Arguments<Element>& problem, unsigned number)
      : image(problem.output_plane.quotient_of_any(number)),
        output(static_cast<int>(number - image * problem.output_plane.divisor)) {
    input = output;
    if (problem.is_dense) return;
    const int depth = problem.output_area.quotient_of_any(output);
    const int of_plane = output - depth * static_cast<int>(problem.output_area.divisor);
    const int row = problem.output_width.quotient_of_any(of_plane);
    const int column = of_plane - row * static_cast<int>(problem.output_width.divisor);
    input = depth * problem.depth_step + row * problem.row_step + column * problem.column_step;
  }
};

// The two pixels of a thread, of a tile of a warpgroup: neighbours where the thread stores both at once, else
// eight apart, so that lanes store neighbours.
struct ThreadPixels {
  int first, distance;
  int quarter;  // of a product's channels

  __device__ explicit ThreadPixels(bool are_pairs)
      : distance(are_pairs ? 1 : 8), quarter(static_cast<int>(threadIdx.x) % 4) {
    const int row = static_cast<int>(threadIdx.x) % 32 / 4;
    first = thread_of_warpgroup() / 32 * 16 + (are_pairs ? 2 * row : row);
  }

  __device__ unsigned number(int tile, int i) const {
    return static_cast<unsigned>(tile * kPixels + first + distance * i);
  }
};

// Loads chunks of a warpgroup's tiles, one after the other, to where they wait (waiting.cuh).
template <typename Element, int kSteps>
class ChunkLoader {
 public:
  __device__ ChunkLoader(const Arguments<Element>& problem, const ThreadPixels& own, int group, int tile,
                         int stride)
      : problem_(problem), own_(own), group_(group), tile_(tile), stride_(stride) {}

  // Where there is no more, none.
  template <typename To>
  __device__ void load_next(const To& to) {
    if (tile_ >= problem_.tiles) return;
    if (chunk_ == 0) find_pixels();
    const int left = problem_.channels - chunk_ * kSteps * kDepth;
    if (problem_.loads_pairs) {
      load<true>(to, left);
    } else {
      load<false>(to, left);
    }
    const long long further = kSteps * kDepth * static_cast<long long>(problem_.input_plane);
    from_[0] += further, from_[1] += further;
    if (++chunk_ == problem_.chunks) chunk_ = 0, tile_ += stride_;
  }

 private:
  using Of = Numbers<Element>;
  static constexpr int kDepth = kDepthBytes / sizeof(Element);

  // What lies behind the last pixel is as the last.
  __device__ void find_pixels() {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const unsigned last = problem_.pixels - (problem_.stores_pairs ? 2u - i : 1u);
      const Pixel pixel(problem_, min(own_.number(tile_, i), last));
      const long long channel = static_cast<long long>(pixel.image) * problem_.in_channels +
                                group_ * problem_.channels + Of::channel_of(own_.quarter, 0);
      from_[i] = problem_.x + channel * problem_.input_plane + pixel.input;
    }
  }

  template <bool kArePairs, typename To>
  __device__ void load(const To& to, int left) const {
    const auto load_channel = [&](int step, int load, bool is_there) {
      const long long at =
          (step * kDepth + Of::channel_of(0, load)) * static_cast<long long>(problem_.input_plane);
      if constexpr (kArePairs) {
        to.load_pair(step, load, from_[0] + at, is_there);
      } else {
        to.load_each(step, load, from_[0] + at, from_[1] + at, is_there);
      }
    };
    if (left >= kSteps * kDepth) [[likely]] {
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
#pragma unroll
        for (int load = 0; load < Of::kLoads; ++load) load_channel(step, load, true);
      }
    } else {
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
#pragma unroll
        for (int load = 0; load < Of::kLoads; ++load) {
          load_channel(step, load, step * kDepth + Of::channel_of(own_.quarter, load) < left);
        }
      }
    }
  }

  const Arguments<Element>& problem_;
  const ThreadPixels& own_;
  int group_, tile_, stride_, chunk_ = 0;
  const Element* from_[2];
};

}  // namespace convswap::pointwise
